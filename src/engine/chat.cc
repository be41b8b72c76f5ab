#include "engine/chat.h"

namespace quire {

Result<std::vector<Segment>> render_chat_segments(const Runtime& runtime, const Json& messages,
                                                  const ChatOptions& options) {
  const ChatTemplate* chat =
      options.chat_template != nullptr ? options.chat_template : runtime.chat_template();
  if (chat == nullptr)
    return Error{Code::unsupported,
                 "this model has no chat template; give plain text (--raw) or a --chat-template"};
  const Tokenizer& t = runtime.tokenizer();
  Json context = options.variables.is_object() ? options.variables : Json::object();
  context["messages"] = messages;
  context["add_generation_prompt"] = options.add_generation_prompt;
  context["bos_token"] = t.piece(t.bos());
  context["eos_token"] = t.piece(t.eos());
  if (!options.tools.is_null()) context["tools"] = options.tools;
  return chat->render_segments(context);
}

std::vector<TokenId> encode_segments(const Tokenizer& tokenizer, std::span<const Segment> parts) {
  std::vector<TextSpan> spans;
  for (const Segment& s : parts) spans.push_back({s.text, !s.from_data});
  return tokenizer.encode(spans);
}

Result<std::vector<TokenId>> render_chat(const Runtime& runtime, const Json& messages,
                                         const ChatOptions& options) {
  TRY(const std::vector<Segment> parts, render_chat_segments(runtime, messages, options));
  return encode_segments(runtime.tokenizer(), parts);
}

}  // namespace quire
