// cli/serve_several.h - `quire serve A B`, and `--models-dir`: several models behind one port.
#pragma once

#include <chrono>
#include <string>

#include "cli/serve_options.h"

namespace quire::cli {

bool several_models(const ServeOptions& options);
int serve_several(const ServeOptions& options);

// "http://127.0.0.1:8080", "https://...", "unix:/run/quire.sock"
std::string url_of(const ServeOptions& options, std::uint16_t port);
// What people who start it in a terminal are told to do next.
void greet(const std::string& url, std::chrono::steady_clock::time_point began);

}  // namespace quire::cli
