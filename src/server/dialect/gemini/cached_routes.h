// server/dialect/gemini/cached_routes.h - the routes of cachedContents, and requests that name one.
#pragma once

#include <memory>

#include "server/dialect/gemini/cached_contents.h"
#include "server/server.h"

namespace quire::gemini {

void post_cached_content(Server& server, std::shared_ptr<Call> call);
void get_cached_contents(Server& server, std::shared_ptr<Call> call);
void get_cached_content(Server& server, std::shared_ptr<Call> call);
void patch_cached_content(Server& server, std::shared_ptr<Call> call);
void delete_cached_content(Server& server, std::shared_ptr<Call> call);

bool names_cached_content(const Json& body);
// The cached content that a body for `model` names, if it names one. The body then becomes the one
// that asks the same without it.
std::optional<ApiError> take_cached_content(Server& server, const Call& call,
                                            const std::string& model, Json& body,
                                            std::optional<CachedContent>& taken);

}  // namespace quire::gemini
