// server/kv_report.h - the `kv` object of an answer: what was cached, computed and written, and what
// kv.report names.
#pragma once

#include <span>

#include "base/json.h"
#include "engine/runtime.h"
#include "server/dialect/answer_writer.h"
#include "server/generation_request.h"

namespace quire {

// Of all prompts of a request, and what each came to.
Json kv_report(const GenerationRequest& request, const Usage& usage,
               std::span<const Done* const> prompts, const Runtime& runtime);

// Of bytes that were read from tiers while steps ran: those that were there before they were waited for.
double hidden_share(std::uint64_t bytes, std::uint64_t hidden);

}  // namespace quire
