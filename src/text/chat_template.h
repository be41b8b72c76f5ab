// text/chat_template.h - a conversation to prompt text, by the Jinja template a model brings along.
//
// Renders what jinja2 renders when transformers' apply_chat_template runs the template, and says of
// every byte whether the template's author or the caller's data wrote it. Special tokens are looked
// for in the first kind only: user content can spell <|im_end|> but never be one. The tokenizer
// should encode neighbouring segments as one text, so that merges cross their edges as in the plain
// string; only matches of special tokens must lie in template text.
//
//   TRY(ChatTemplate chat, ChatTemplate::parse(gguf.string("tokenizer.chat_template")));
//   Json context = {{"messages", {{{"role", "user"}, {"content", "Hi"}}}},
//                   {"add_generation_prompt", true},
//                   {"bos_token", "<s>"},
//                   {"eos_token", "</s>"}};
//   TRY(std::vector<Segment> prompt, chat.render_segments(context));
//
// Every string of the context is data, except bos_token and eos_token, which the caller takes from
// the model and never from a client, and the roles of messages where they are one of kTrustedRoles
// (templates build control tokens from these).
#pragma once

#include <cstddef>
#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_named.h"
#include "base/result.h"

namespace quire {

struct Segment {
  std::string text;
  bool from_data;    // true: split as text; false: the template's own, special tokens are parsed
  int message = -1;  // whose content it is, where it is one's

  bool operator==(const Segment&) const = default;
};

struct RenderLimits {
  std::size_t steps_max = 5'000'000;  // as text/jinja/meter.h counts them
  // Memory of all values at a time, the output included, besides eight times the context's text.
  std::size_t bytes_max = 12 << 20;
  int depth_max = 400;  // nested statements, expressions and macro calls
};

inline constexpr std::string_view kTrustedRoles[] = {
    "system",  "developer", "user",      "assistant",     "tool",        "function",
    "ipython", "model",     "tool_call", "tool_response", "environment", "document"};

class ChatTemplate {
 public:
  // The error names the construct and its line: invalid for a mistake, unsupported for what is
  // outside our subset.
  static Result<ChatTemplate> parse(std::string source);

  // Error codes: invalid (raise_exception's message, or the template's mistake on this data),
  // exhausted (a limit), unsupported. `now` feeds strftime_now; local time when not set.
  Result<std::string> render(const Json& context, const RenderLimits& limits = {}) const;
  Result<std::vector<Segment>> render_segments(const Json& context,
                                               const RenderLimits& limits = {}) const;

  const std::string& source() const;
  std::function<std::tm()> now;

 private:
  struct Parsed;
  explicit ChatTemplate(std::shared_ptr<const Parsed> parsed) : parsed_(std::move(parsed)) {}
  std::shared_ptr<const Parsed> parsed_;  // immutable: one template may render on several threads
};

}  // namespace quire
