// server/kv_sessions.h - sessions (engine/sessions.h) over HTTP: what routes and generations share.
//
//   if (auto error = claim_session(server, prompts, asked, request)) return call->refuse(*error);
#pragma once

#include <optional>
#include <string>

#include "engine/sessions.h"
#include "server/server.h"

namespace quire {

// The request goes on with the session that its kv object names; if it names none, nothing changes.
// `asked` then says which session it is (a fork has another name) and how it goes on. `prompts`: how
// many its body has. Any thread.
std::optional<ApiError> claim_session(Server& server, std::size_t prompts, GenerationRequest& asked,
                                      Request& request);

ApiError session_error(const Error& error);
ApiError session_exists(const std::string& id);

// Whose sessions a call is about: its own tenant's, or, for an administrator, ?tenant=.
std::string session_tenant(Call& call);

// Answers with a session as it is now. Any thread.
void show_session(Server& server, std::shared_ptr<Call> call, const std::string& tenant,
                  const std::string& id, Json more = Json::object());

}  // namespace quire
