// lab/board/page_assets.h - style and script of the leaderboard's page. Used by lab/board/page.cc.
#pragma once

namespace quire {

extern const char* const kPageStyle;
extern const char* const kPageScript;

}  // namespace quire
