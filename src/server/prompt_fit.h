// server/prompt_fit.h - a conversation that is longer than the context loses its oldest messages.
#pragma once

#include "server/prompt.h"

namespace quire {

// make_prompts(). If the prompt is too long and the request asks for it (drop_oldest), as many of its
// oldest turns are left out as it takes to leave a quarter of the context for the answer. What is said first by the system stays. A turn begins with
// a message of the user, so no result is left without its call. `asked` then has the messages that
// were kept.
std::optional<ApiError> make_fitting_prompts(GenerationRequest& asked, const Runtime& runtime,
                                             std::vector<Prompt>& out);

}  // namespace quire
