// server/tools.h - tools and earlier calls in prompts, as templates want them.
//
// How calls are found in answers is in server/answer_format/.
#pragma once

#include <string_view>

#include "base/json.h"

namespace quire {

// Messages for a template that does not know tools: they are described in a system message, calls
// and their results become text.
Json messages_with_tools(const Json& messages, const Json& tools);

// Messages for a template that does. Calls and their results get ids, numbered from the beginning:
// some templates want ids, and those of clients are random, so a prompt with them would never be
// found in the cache. Earlier reasoning gets the names that this template reads. Where a template looks for
// tools in its system message, they are put there.
Json messages_for_template(const Json& messages, const Json& tools, std::string_view chat_template);
// The arguments of calls as text: some templates join them to text.
Json with_text_arguments(Json messages);

}  // namespace quire
