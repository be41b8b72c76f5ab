// server/dialect/gemini/gemini_contents.h - contents, system instruction and tools of a request, as
// templates want them.
//
// Neighbouring contents of one role become one message: the client keeps a streamed answer as a
// content per chunk, and some templates refuse two messages of one role. The texts of a model are
// joined as they are, so that the next turn begins with the tokens of the last one. Texts of a user
// are joined by line feeds.
#pragma once

#include "server/fields.h"
#include "server/generation_request.h"

namespace quire::gemini {

void parse_contents(Fields& body, GenerationRequest& asked);  // and systemInstruction
void parse_tools(Fields& body, GenerationRequest& asked);     // and toolConfig

}  // namespace quire::gemini
