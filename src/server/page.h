// server/page.h - the page at `/`: a chat, and beside it the cache as it is now.
//
// One self-contained document made from src/server/page/ by cmake/embed_page.cmake. It asks only
// the server that sent it: /v1/chat/completions, /v1/models, /v1/kv/stats, /v1/kv/tree,
// /v1/kv/requests and /metrics.
//
//   x->respond({.headers = {{"Content-Type", "text/html; charset=utf-8"},
//                           {"Content-Security-Policy", std::string(kPagePolicy)}},
//               .body = std::string(page_html())});
#pragma once

#include <string_view>

namespace quire {

std::string_view page_html();

// The page loads nothing from other servers, and cannot send anything to them.
inline constexpr std::string_view kPagePolicy =
    "default-src 'none'; connect-src 'self'; img-src data:; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

}  // namespace quire
