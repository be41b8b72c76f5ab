// server/dialect/ollama/ollama_routes.h - Ollama's routes that generate nothing: the model as its
// clients see it.
#pragma once

#include <memory>

#include "server/server.h"

namespace quire::ollama {

void get_tags(Server& server, std::shared_ptr<Call> call);
void get_running(Server& server, std::shared_ptr<Call> call);
void post_show(Server& server, std::shared_ptr<Call> call);
void get_api_version(Server& server, std::shared_ptr<Call> call);

// The name under which the model is served: "m" for "m" and "m:latest". Any other name stays.
std::string served_name(const Server& server, const std::string& name);
ApiError no_model(const std::string& name);

}  // namespace quire::ollama
