// engine/client.h - an engine that the calling thread drives: from a prompt to answers, as text.
//
// `quire run`, `quire chat` and the C API use a Client. The server uses a Service, which drives the
// same engine from its own thread.
//
//   Client client(*runtime);
//   TRY(GenerateResult result, client.generate(prompt, {.tokens_max = 64}, events));
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/request.h"
#include "engine/runtime.h"
#include "engine/sampler.h"

namespace quire {

struct GenerateOptions {
  SamplingOptions sampling = {};
  std::uint32_t tokens_max = 128;
  std::uint32_t choices = 1;  // n
  std::uint32_t beams = 0;    // > 0: beam search of that width; `choices` best are returned
  float length_penalty = 1;   // beam scores are divided by length^penalty
  bool ignore_end = false;    // do not stop at the model's end-of-generation tokens
  bool skip_special = true;   // leave control tokens out of the text
  std::vector<std::string> stop = {};
  std::uint32_t chunk = 0;                          // rows per prefill step; 0: as many as fit
  std::shared_ptr<const RetainPolicy> retain = {};  // null: the runtime's, if it has one
  std::shared_ptr<const SelectPolicy> select = {};  // of answers; null: the runtime's, if any
  std::shared_ptr<SessionTurn> session = {};        // that it goes on with
  std::uint64_t resident = 0;                       // KvPolicy::resident
};

struct Generated {
  std::vector<TokenId> tokens;  // the end token included when it was sampled
  std::string text;
  std::vector<Choice> choices;  // one per token
  Finish finish = Finish::length;
  std::string stopped_by;  // the stop string that matched
  double score = 0;        // sum of log-probabilities (beams: divided by the length penalty)
};

struct GenerateTimings {
  std::uint32_t prompt_tokens = 0, cached_tokens = 0;
  double prefill_seconds = 0, decode_seconds = 0;
  std::uint32_t decoded_tokens = 0;
  std::uint64_t kv_bytes = 0;                              // that the first answer held at its end
  std::uint64_t kv_bytes_read = 0, kv_bytes_readable = 0;  // by answers that select
  std::uint64_t cold_bytes = 0, cold_hidden_bytes = 0;     // kv.resident: read from tiers
};

struct GenerateEvents {
  // Text that became certain, of one choice. Returning false stops everything, here and below.
  std::function<bool(std::uint32_t choice, std::string_view text)> text = {};
  std::function<bool(std::uint32_t done, std::uint32_t total)> prefill = {};
  std::function<bool()> step =
      {};  // before each step after the prompt, also where no text comes yet (beams)
};

struct GenerateResult {
  std::vector<Generated> answers;
  GenerateTimings timings;
};

class Client {
 public:
  explicit Client(Runtime& runtime);
  ~Client();

  Result<GenerateResult> generate(std::span<const TokenId> prompt, const GenerateOptions& options,
                                  const GenerateEvents& events = {});

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace quire
