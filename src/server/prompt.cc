#include "server/prompt.h"

#include <fmt/core.h>

#include <algorithm>

#include "engine/chat.h"
#include "server/tools.h"

namespace quire {
namespace {

std::string joined(std::span<const Segment> parts) {
  std::string text;
  for (const Segment& p : parts) text += p.text;
  return text;
}

// Where tokens end in the text they came from. If a tokenizer adds or normalizes bytes, this is off
// by a byte or two.
class TokenEnds {
 public:
  TokenEnds(const Tokenizer& tokenizer, std::span<const TokenId> tokens, std::size_t text_bytes) {
    std::size_t total = 0;
    for (const TokenId t : tokens) ends_.push_back(total += tokenizer.piece(t).size());
    added_ = total > text_bytes ? total - text_bytes : 0;
  }
  // Tokens that lie wholly before this byte.
  std::uint32_t before(std::size_t byte) const {
    return static_cast<std::uint32_t>(std::ranges::upper_bound(ends_, byte + added_) -
                                      ends_.begin());
  }

 private:
  std::vector<std::size_t> ends_;
  std::size_t added_ = 0;  // a space in front, by some tokenizers
};

struct Conversation {
  Json messages;               // as rendered
  std::vector<Segment> parts;  // of the prompt
};

// The bytes of the prompt from the first to the last of a message's content.
struct Extent {
  std::size_t begin = 0, end = 0;
  bool shown = false;
};

std::vector<Extent> where_shown(const Conversation& c) {
  std::vector<Extent> extents(c.messages.size());
  std::size_t at = 0;
  for (const Segment& part : c.parts) {
    if (part.message >= 0 && static_cast<std::size_t>(part.message) < extents.size()) {
      Extent& e = extents[static_cast<std::size_t>(part.message)];
      if (!e.shown) e = {.begin = at, .shown = true};
      e.end = at + part.text.size();
    }
    at += part.text.size();
  }
  return extents;
}

std::optional<ApiError> render(const GenerationRequest& asked, const Runtime& runtime,
                               Conversation& out) {
  std::optional<ChatTemplate> own;
  if (!asked.chat_template.empty()) {
    auto parsed = ChatTemplate::parse(asked.chat_template);
    if (!parsed.ok()) return from_error(parsed.error(), "chat_template");
    own = std::move(parsed.value());
  }
  const ChatTemplate* chat = own ? &*own : runtime.chat_template();
  if (chat == nullptr)
    return ApiError{.message =
                        "this model has no chat template; use /v1/completions, or send a "
                        "chat_template",
                    .code = "unsupported_parameter",
                    .param = std::string(asked.prompt_field)};
  ChatOptions options{.add_generation_prompt = asked.add_generation_prompt,
                      .variables = asked.template_variables,
                      .chat_template = chat};
  out.messages = asked.messages;
  const bool knows_tools = chat->source().find("tools") != std::string::npos;
  const bool has_calls = std::ranges::any_of(asked.messages, [](const Json& m) {
    return m.contains("tool_calls") || m["role"] == "tool";
  });
  if (!asked.tools.is_null() && knows_tools)
    options.tools = asked.tools;
  else if (!knows_tools && (!asked.tools.is_null() || has_calls))
    out.messages = messages_with_tools(asked.messages, asked.tools);
  auto parts = render_chat_segments(runtime, out.messages, options);
  if (auto error = stopped()) return error;
  if (!parts.ok()) return from_error(parts.error(), std::string(asked.prompt_field));
  out.parts = std::move(parts.value());
  return std::nullopt;
}

// The model is to continue the last message, so the template's text behind it is removed.
std::optional<ApiError> cut_after_last(Conversation& c) {
  const Extent last = where_shown(c).back();
  if (!last.shown)
    return bad_value("continue_final_message",
                     "the template does not show the last message as it is");
  std::size_t left = last.end;
  for (Segment& part : c.parts) {
    const std::size_t keep = std::min(left, part.text.size());
    part.text.resize(keep);
    left -= keep;
  }
  return std::nullopt;
}

void name_segments(const GenerationRequest& asked, const Conversation& c, const TokenEnds& ends,
                   std::uint32_t token_count, Prompt& out) {
  std::size_t systems = 0;
  std::uint32_t begin = 0;
  const std::vector<Extent> extents = where_shown(c);
  // Tools that became a message of their own stand before the client's.
  const std::size_t moved = c.messages.size() - asked.messages.size();
  for (std::size_t i = 0; i < c.messages.size(); ++i) {
    const Json& m = c.messages[i];
    if (!extents[i].shown) continue;
    const std::uint32_t end = std::max(begin, ends.before(extents[i].end));
    std::string name = i < moved               ? "tools"
                       : m["role"] == "system" ? fmt::format("system[{}]", systems++)
                                               : fmt::format("messages[{}]", i - moved);
    out.segments.push_back({std::move(name), begin, end});
    begin = end;
    if (asked.breakpoint && i >= moved && asked.breakpoint->first == i - moved) {
      // The client's part ends where its text ends within the content.
      const std::string& own = asked.messages[i - moved]["content"].get_ref<const std::string&>();
      const std::size_t tail = own.size() - std::min(own.size(), asked.breakpoint->second);
      const std::size_t shown = extents[i].end - extents[i].begin;
      out.breakpoint = ends.before(extents[i].end - std::min(shown, tail));
    }
  }
  if (!out.segments.empty()) out.segments.back().end = token_count;
}

// A lower bound of the number of tokens in a text of this length. A text that is surely too long is
// refused without tokenizing it.
std::optional<ApiError> check_length(std::size_t bytes, const GenerationRequest& asked,
                                     const Runtime& runtime) {
  constexpr std::size_t kSpare = 4;  // some tokenizers leave bytes out
  const std::size_t piece = std::max<std::size_t>(runtime.tokenizer().longest_piece(), 16);
  const std::size_t max = std::max(runtime.context() * piece * kSpare, std::size_t{1} << 20);
  if (asked.truncate_prompt != 0 || bytes <= max) return std::nullopt;
  const char* const what = asked.chat ? "messages" : "prompt";
  return ApiError{
      .message = fmt::format("This model's maximum context length is {} tokens. However, your {} "
                             "has {} bytes. Please reduce the length of the {}.",
                             runtime.context(), what, bytes, what),
      .code = "context_length_exceeded",
      .param = what};
}

std::optional<ApiError> chat_prompt(const GenerationRequest& asked, const Runtime& runtime,
                                    Prompt& out) {
  Conversation c;
  if (auto error = render(asked, runtime, c)) return error;
  if (asked.continue_final_message)
    if (auto error = cut_after_last(c)) return error;
  std::size_t bytes = 0;
  for (const Segment& part : c.parts) bytes += part.text.size();
  if (auto error = check_length(bytes, asked, runtime)) return error;
  out.tokens = encode_segments(runtime.tokenizer(), c.parts);
  const TokenEnds ends(runtime.tokenizer(), out.tokens, bytes);
  name_segments(asked, c, ends, static_cast<std::uint32_t>(out.tokens.size()), out);
  return std::nullopt;
}

std::optional<ApiError> infill(const PromptInput& prompt, const std::string& suffix,
                               const Tokenizer& t, std::vector<TokenId>& out) {
  struct Names {
    const char *prefix, *suffix, *middle;
  };
  for (const Names& n :
       {Names{"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"},
        Names{"<fim_prefix>", "<fim_suffix>", "<fim_middle>"}, Names{"<PRE>", "<SUF>", "<MID>"}}) {
    const TokenId before = t.find(n.prefix), after = t.find(n.suffix), middle = t.find(n.middle);
    if (before == kNoToken || after == kNoToken || middle == kNoToken) continue;
    const std::vector<TokenId> head = prompt.is_tokens ? prompt.tokens : t.encode(prompt.text);
    const std::vector<TokenId> tail = t.encode(suffix);
    out.push_back(before);
    out.insert(out.end(), head.begin(), head.end());
    out.push_back(after);
    out.insert(out.end(), tail.begin(), tail.end());
    out.push_back(middle);
    return std::nullopt;
  }
  return bad_value("suffix", "this model has no tokens for filling in the middle",
                   "unsupported_parameter");
}

void truncate(const GenerationRequest& asked, const Runtime& runtime, Prompt& prompt) {
  if (asked.truncate_prompt == 0) return;
  const std::size_t keep = asked.truncate_prompt < 0
                               ? runtime.context() - 1
                               : static_cast<std::size_t>(asked.truncate_prompt);
  if (prompt.tokens.size() <= keep) return;
  prompt.tokens.erase(prompt.tokens.begin(),
                      prompt.tokens.end() - static_cast<std::ptrdiff_t>(keep));
  prompt.segments.clear();
  prompt.breakpoint.reset();
}

constexpr std::size_t kPromptsMax = 1024;

bool is_token(const Json& t, std::uint32_t vocabulary) {
  return t.is_number_unsigned() && t.get<std::uint64_t>() < vocabulary;
}

}  // namespace

std::optional<ApiError> parse_prompts(const Json& prompt, std::uint32_t vocabulary,
                                      GenerationRequest& asked) {
  const auto tokens_of = [&](const Json& list) -> std::optional<PromptInput> {
    PromptInput p{.is_tokens = true};
    p.tokens.reserve(list.size());
    for (const Json& t : list) {
      if (!is_token(t, vocabulary)) return std::nullopt;
      p.tokens.push_back(t.get<TokenId>());
    }
    return p;
  };
  if (prompt.is_string()) {
    asked.prompts.push_back({.text = prompt.get<std::string>()});
    return std::nullopt;
  }
  if (!prompt.is_array() || prompt.empty())
    return bad_value("prompt", "must be a string, a list of strings, tokens, or lists of tokens");
  if (prompt.front().is_number()) {
    auto p = tokens_of(prompt);
    if (!p) return bad_value("prompt", "must hold tokens of this model only");
    asked.prompts.push_back(std::move(*p));
    return std::nullopt;
  }
  if (prompt.size() > kPromptsMax)
    return bad_value("prompt", fmt::format("must hold at most {} prompts", kPromptsMax));
  for (const Json& one : prompt) {
    if (prompt.front().is_string() && one.is_string()) {
      asked.prompts.push_back({.text = one.get<std::string>()});
    } else if (prompt.front().is_array() && one.is_array() && !one.empty()) {
      auto p = tokens_of(one);
      if (!p) return bad_value("prompt", "must hold tokens of this model only");
      asked.prompts.push_back(std::move(*p));
    } else {
      return bad_value("prompt", "must not mix strings, tokens and empty lists");
    }
  }
  return std::nullopt;
}

std::optional<ApiError> render_text(const GenerationRequest& asked, const Runtime& runtime,
                                    std::string& out) {
  Conversation c;
  if (auto error = render(asked, runtime, c)) return error;
  if (asked.continue_final_message)
    if (auto error = cut_after_last(c)) return error;
  out = joined(c.parts);
  return std::nullopt;
}

std::optional<ApiError> make_prompts(const GenerationRequest& asked, const Runtime& runtime,
                                     std::vector<Prompt>& out) {
  const Tokenizer& tokenizer = runtime.tokenizer();
  if (asked.chat) {
    Prompt prompt;
    if (auto error = chat_prompt(asked, runtime, prompt)) return error;
    if (auto error = stopped()) return error;
    out.push_back(std::move(prompt));
  }
  for (const PromptInput& p : asked.prompts) {
    Prompt prompt;
    if (auto error =
            check_length(p.text.size() + (asked.suffix ? asked.suffix->size() : 0), asked, runtime))
      return error;
    if (asked.suffix) {
      if (auto error = infill(p, *asked.suffix, tokenizer, prompt.tokens)) return error;
    } else if (p.is_tokens) {
      prompt.tokens = p.tokens;
    } else {
      prompt.tokens = tokenizer.encode(
          p.text, {.parse_special = asked.parse_special, .add_special = asked.add_special});
      // An empty text is the beginning of any text.
      if (prompt.tokens.empty() && tokenizer.bos() != kNoToken)
        prompt.tokens.push_back(tokenizer.bos());
    }
    if (auto error = stopped()) return error;
    if (prompt.tokens.empty()) return bad_value("prompt", "must not be empty");
    out.push_back(std::move(prompt));
  }
  for (Prompt& prompt : out) {
    truncate(asked, runtime, prompt);
    if (prompt.segments.empty())
      prompt.segments = {{"prompt", 0, static_cast<std::uint32_t>(prompt.tokens.size())}};
    // A prompt that fills the window leaves no room for an answer; scoring needs none.
    const std::size_t room = asked.tokens_max == 0u ? 0 : 1;
    if (prompt.tokens.size() + room > runtime.context())
      return ApiError{
          .message = fmt::format(
              "This model's maximum context length is {} tokens. However, your {} "
              "resulted in {} tokens. Please reduce the length of the {}.",
              runtime.context(), asked.prompt_field, prompt.tokens.size(), asked.prompt_field),
          .code = "context_length_exceeded",
          .param = std::string(asked.prompt_field)};
  }
  return std::nullopt;
}

Request make_request(const GenerationRequest& asked, const Prompt& prompt, const Runtime& runtime,
                     std::string id) {
  Request r;
  r.id = std::move(id);
  r.family = asked.family;
  r.prompt = prompt.tokens;
  r.segments = prompt.segments;
  r.sampling = asked.sampling;
  r.sampling.logprobs = asked.top_logprobs;
  r.sampling.logprob = asked.logprobs || asked.best_of > asked.n;  // what best_of ranks by
  r.tokens_max = asked.tokens_max.value_or(runtime.context());
  r.tokens_min = asked.tokens_min;
  r.cut_tokens_max = true;
  r.ignore_end = asked.ignore_eos;
  r.stop_tokens = asked.stop_tokens;
  r.choices = std::max(asked.n, asked.best_of);
  if (asked.beam_search) {
    r.beams = r.choices;
    r.length_penalty = asked.length_penalty;
  }
  r.prompt_logprobs = asked.prompt_logprobs;
  if (!asked.prediction.empty())
    r.prediction = runtime.tokenizer().encode(asked.prediction, {.add_special = false});
  r.kv = asked.kv.policy;
  if (prompt.breakpoint && *prompt.breakpoint > 0 && asked.kv.breakpoint_ttl.value_or(0) > 0)
    r.kv.leases.push_back({.end_token = *prompt.breakpoint, .ttl = *asked.kv.breakpoint_ttl});
  r.priority = asked.priority;
  return r;
}

}  // namespace quire
