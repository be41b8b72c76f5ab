// lab/load/dialogue.h - the two wire shapes a load can be sent in, and what comes back.
//
// One Dialogue per session: it grows by turns and answers, and writes the request body of the next
// turn. read_chunk() reads one event of the streamed answer. Used by run_load() alone.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "lab/load/prompt.h"

namespace quire::load {

enum class Api : std::uint8_t {
  chat,         // /v1/chat/completions with messages
  completions,  // /v1/completions with text
  token_ids,    // /v1/completions with token ids: lengths are exact, there are no later turns
};

// What every request of a run has in common.
struct AskOptions {
  Api api = Api::chat;
  std::string model;
  Calibration calibration;
  std::uint32_t vocabulary = 32000;  // token ids are drawn below this
  bool ignore_eos = true;            // so that every answer has the length it was given
  Json extra = Json::object();       // added to every body
};

class Dialogue {
 public:
  explicit Dialogue(const AskOptions& options) : options_(&options) {}

  void say(const Part& part);
  void answered(std::string_view text) { say({"assistant", 0, 0, std::string(text)}); }
  std::string body(std::uint32_t output_tokens, bool stream = true) const;

 private:
  struct Message {
    std::string role, text;
  };
  const AskOptions* options_;
  std::vector<Message> messages_;
  std::vector<std::uint32_t> ids_;
};

struct Usage {
  std::uint64_t prompt = 0, output = 0;
  std::optional<std::uint64_t> cached;  // not every server tells
};

struct Chunk {
  std::string text;  // of the first choice; empty in chunks that only announce or end
  std::optional<Usage> usage;
  std::string error;
};

std::string_view api_route(Api api);
Chunk read_chunk(std::string_view data);
std::optional<Usage> read_usage(const Json& answer);

}  // namespace quire::load
