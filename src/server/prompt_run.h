// server/prompt_run.h - reads a prompt into the cache without answering: prefill, pins.
#pragma once

#include <functional>
#include <memory>

#include "engine/request.h"
#include "server/server.h"

namespace quire {

// Submits the request (worker thread) and runs `then` on the connection's thread when it is done.
// Failures are answered; a client that leaves cancels it. Tokens that it makes go nowhere.
void run_prompt(Server& server, std::shared_ptr<Call> call, Request request,
                std::function<void(const Done&)> then, std::uint32_t tokens_max = 0);

}  // namespace quire
