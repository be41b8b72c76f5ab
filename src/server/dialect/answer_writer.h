// server/dialect/answer_writer.h - how an answer looks on the wire: each dialect has its own.
//
// A Generation (server/generation.h) gives its writer the text that has become certain and sends
// the bytes that the writer returns: events, lines or elements of an array, as stream_head()
// announces. A writer knows no socket and no engine, so it is tested on strings.
//
//   writer->begin(usage) + writer->piece(...) + ... + writer->end(usage, kv);   // a stream
//   writer->whole(answers, prompts, usage, kv);                                 // or one body
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "engine/request.h"
#include "server/answer_format/call_reader.h"
#include "server/api_error.h"

namespace quire {

enum class FinishReason : std::uint8_t { stop, length, tool_calls };

// A prefix of the prompt that a cache breakpoint asks to keep.
struct KeptPrefix {
  std::uint32_t tokens = 0;  // before the breakpoint
  std::uint32_t whole = 0;   // of these, in whole blocks: so much can be kept
  Nanoseconds ttl = 0;
  bool held = true;  // it is kept; false: there was no room for it among pins
};

struct Usage {
  std::uint64_t prompt = 0, completion = 0;
  std::uint64_t cached = 0, written = 0;  // of the prompt: served from the cache, newly kept
  std::uint64_t loaded = 0, remote = 0;   // of the cached: came from a tier; from a shared one
  std::uint64_t predicted = 0, mispredicted = 0;   // of `prediction`: came true, and did not
  std::vector<KeptPrefix> kept = {};               // of the first prompt; rising
  std::uint64_t reasoning = 0;                     // of the completion: its marks included
  double prefill_seconds = 0, decode_seconds = 0;  // by the engine's clock; 0 until it is done
};
inline Json cached_by_tier(const Usage& u) {
  return {{"cpu", u.cached - u.loaded}, {"disk", u.loaded - u.remote}, {"remote", u.remote}};
}

// What is new of one choice. Reasoning comes before text, and text before tools.
struct AnswerPiece {
  std::uint32_t index = 0;                  // of the choice, over all prompts
  std::uint32_t prompt = 0;                 // it belongs to
  std::string reasoning = {};               // what it thinks before it answers
  std::string text = {};                    // content
  std::vector<ToolPiece> tools = {};        // in order with each other; content is in `text`
  std::vector<Choice> tokens = {};          // whose text is shown by now; log-probabilities inside
  std::vector<TokenId> silent = {};         // after these, in the last piece: they leave no text
  std::optional<FinishReason> finish = {};  // the last piece of the choice
  std::string stop = {};                    // the stop string that ended it, in the last piece
};

// One choice, whole.
struct WholeAnswer {
  std::uint32_t index = 0, prompt = 0;
  std::string reasoning = {}, text = {};
  struct Call {
    std::string name, arguments;
  };
  std::vector<Call> calls = {};
  std::vector<Choice> tokens = {};      // those whose text is shown
  std::vector<TokenId> token_ids = {};  // all that were sampled and count
  FinishReason finish = FinishReason::stop;
  std::string stop = {};  // the stop string that ended it
  double mean_logprob = 0;
};

// What a dialect may want to know of a prompt.
struct PromptInfo {
  std::vector<TokenId> tokens;
  std::vector<PromptLogprob>
      logprobs;                    // empty unless asked for; of what is scored, if it is a part
  std::vector<float> pooled = {};  // states, where an embedding is wanted
};

// Which tokens are reported as cached (--cache-accounting).
struct CacheReporting {
  bool vendor = false;  // as the dialect's vendor would; false: those that were not computed again
  std::uint32_t tokens_min = 0;  // prefixes with fewer are not cached, by the vendor's rules
  std::uint32_t tokens_per_block = 1;
  std::vector<std::uint32_t> parts = {};  // tokens before the end of each part of the prompt
};

// What an answer says about itself.
struct AnswerHead {
  std::string id;            // of the request, without its prefix
  std::int64_t created = 0;  // seconds since 1970
  std::string model, system_fingerprint;
  CacheReporting cache = {};
};

class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;

  virtual std::string id() const = 0;  // of the answer, as its client is told
  // Of any answer, after `took` on the server; besides those that all dialects have.
  virtual std::vector<HttpHeader> headers(Nanoseconds took) const { return {}; }
  // Type and idle text of a stream; see sse_head().
  virtual HttpResponse stream_head() const = 0;

  // Before all others, where GenerationRequest::compare_to or kv.report asks: why the first prompt hit
  // or missed. See server/cache_diagnostics.h.
  virtual void explained(const Explanation&) {}
  // All prompts are admitted and nothing is generated yet. Empty: the stream begins with a piece.
  virtual std::string begin(const Usage& so_far) { return {}; }
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
