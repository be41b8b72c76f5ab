// server/dialect.h - how answers look on the wire: one implementation per vendor API.
//
// A Generation (server/generation.h) tells its dialect what became certain and sends the bytes it
// gets back. Pure: no socket, no engine, so that it is tested on strings.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "engine/request.h"
#include "server/api_error.h"
#include "server/tools.h"

namespace quire {

enum class FinishReason : std::uint8_t { stop, length, tool_calls };

struct Usage {
  std::uint64_t prompt = 0, completion = 0;
  std::uint64_t cached = 0, written = 0;  // of the prompt: served from the cache, newly kept
};

// What is new of one choice.
struct AnswerPiece {
  std::uint32_t index = 0;                  // of the choice, over all prompts
  std::uint32_t prompt = 0;                 // it belongs to
  std::string text = {};                    // content
  std::vector<ToolPiece> tools = {};        // in order with each other; content is in `text`
  std::vector<Choice> tokens = {};          // whose text is shown by now; log-probabilities inside
  std::optional<FinishReason> finish = {};  // the last piece of the choice
};

// One choice, whole.
struct WholeAnswer {
  std::uint32_t index = 0, prompt = 0;
  std::string text = {};
  struct Call {
    std::string name, arguments;
  };
  std::vector<Call> calls = {};
  std::vector<Choice> tokens = {};      // those whose text is shown
  std::vector<TokenId> token_ids = {};  // all that were sampled and count
  FinishReason finish = FinishReason::stop;
  double mean_logprob = 0;
};

// What a dialect may want to know of a prompt.
struct PromptInfo {
  std::vector<TokenId> tokens;
  std::vector<PromptLogprob> logprobs;  // empty unless asked for
};

class Dialect {
 public:
  virtual ~Dialect() = default;
  virtual std::string piece(const AnswerPiece& piece, const std::vector<PromptInfo>& prompts,
                            const Usage& so_far) = 0;
  // After the last piece. `kv` is null unless the client asked for it.
  virtual std::string end(const Usage& usage, const Json& kv) = 0;
  virtual std::string failure(const ApiError& error) = 0;  // midway
  virtual Json whole(const std::vector<WholeAnswer>& answers,
                     const std::vector<PromptInfo>& prompts, const Usage& usage,
                     const Json& kv) = 0;
};

}  // namespace quire
