#include "server/prompt.h"

#include <fmt/core.h>

#include <algorithm>

#include "engine/chat.h"
#include "server/dialect/dialect.h"
#include "server/prompt_parts.h"
#include "server/tools.h"

namespace quire {
namespace {

std::string joined(std::span<const Segment> parts) {
  std::string text;
  for (const Segment& p : parts) text += p.text;
  return text;
}

// A text that is surely too long is refused without rendering or tokenizing it.
std::optional<ApiError> check_length(std::size_t bytes, const GenerationRequest& asked,
                                     const Runtime& runtime) {
  if (bytes <= prompt_bytes_max(runtime)) return std::nullopt;
  const std::string what(asked.prompt_field);
  return ApiError{
      .message = fmt::format("This model's maximum context length is {} tokens. However, your {} "
                             "has {} bytes. Please reduce the length of the {}.",
                             runtime.context(), what, bytes, what),
      .code = "context_length_exceeded",
      .param = what};
}

std::optional<ApiError> render(const GenerationRequest& asked, const Runtime& runtime,
                               RenderedConversation& out) {
  const std::size_t bytes = json_text_bytes(asked.messages) + json_text_bytes(asked.tools) +
                            json_text_bytes(asked.template_variables);
  if (auto error = check_length(bytes, asked, runtime)) return error;
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
  if (!knows_tools && (!asked.tools.is_null() || has_calls)) {
    out.messages = messages_with_tools(asked.messages, asked.tools);
  } else {
    options.tools = asked.tools;
    out.messages = messages_for_template(asked.messages, asked.tools, chat->source());
  }
  auto parts = render_chat_segments(runtime, out.messages, options);
  if (!parts.ok() && parts.error().code == Code::invalid && has_calls && knows_tools) {
    Json as_text = with_text_arguments(out.messages);
    auto again = render_chat_segments(runtime, as_text, options);
    if (again.ok()) {
      out.messages = std::move(as_text);
      parts = std::move(again);
    }
  }
  if (auto error = stopped()) return error;
  if (!parts.ok()) return from_error(parts.error(), std::string(asked.prompt_field));
  out.parts = std::move(parts.value());
  return std::nullopt;
}

// The model is to continue the last message, so the template's text behind it is removed.
std::optional<ApiError> cut_after_last(RenderedConversation& c) {
  const Extent last = where_shown(c.messages.size(), c.parts).back();
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

constexpr std::size_t kTailBytes = 64;

std::optional<ApiError> chat_prompt(const GenerationRequest& asked, const Runtime& runtime,
                                    Prompt& out) {
  RenderedConversation c;
  if (auto error = render(asked, runtime, c)) return error;
  if (asked.continue_final_message)
    if (auto error = cut_after_last(c)) return error;
  std::size_t bytes = 0;
  for (const Segment& part : c.parts) bytes += part.text.size();
  if (auto error = check_length(bytes, asked, runtime)) return error;
  out.tokens = encode_segments(runtime.tokenizer(), c.parts);
  for (auto part = c.parts.rbegin(); part != c.parts.rend() && out.tail.size() < kTailBytes; ++part)
    out.tail.insert(0,
                    part->text.substr(part->text.size() - std::min(part->text.size(), kTailBytes)));
  if (out.tokens.size() > runtime.context()) return std::nullopt;  // cut or refused
  name_parts(asked, c, runtime.tokenizer(), out);
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
  prompt.breakpoints.clear();
}

// Whether a prompt of so many tokens fits, and it and those before it are not too many together.
std::optional<ApiError> check_tokens(std::size_t tokens, std::size_t total,
                                     const GenerationRequest& asked, const Runtime& runtime) {
  // A prompt that fills the window leaves no room for an answer; scoring needs none.
  const std::size_t room = asked.tokens_max == 0u ? 0 : 1;
  if (tokens + room > runtime.context() && !asked.counts_only)
    return ApiError{
        .message = fmt::format("This model's maximum context length is {} tokens. However, your {} "
                               "resulted in {} tokens. Please reduce the length of the {}.",
                               runtime.context(), asked.prompt_field, tokens, asked.prompt_field),
        .code = "context_length_exceeded",
        .param = std::string(asked.prompt_field),
        .details = {{"tokens", tokens}, {"tokens_max", runtime.context()}}};
  const std::size_t max = std::max<std::size_t>(std::size_t{16} * runtime.context(), 1 << 16);
  if (total <= max) return std::nullopt;
  return bad_value(std::string(asked.prompt_field),
                   fmt::format("must have at most {} tokens in all prompts together; send several "
                               "requests",
                               max));
}

// A text and what is scored after it. Each part is encoded on its own, so the scored tokens do not
// depend on the text.
void add_scored(const PromptInput& p, const Tokenizer& tokenizer, Prompt& prompt) {
  const auto add = [&](const std::string& text) {
    const std::vector<TokenId> more = tokenizer.encode(text, {.add_special = false});
    prompt.tokens.insert(prompt.tokens.end(), more.begin(), more.end());
  };
  add(p.bridge);
  prompt.scored_from = static_cast<std::uint32_t>(prompt.tokens.size());
  add(p.scored);
  prompt.segments = {
      {"document", 0, prompt.scored_from},
      {"query", prompt.scored_from, static_cast<std::uint32_t>(prompt.tokens.size())}};
}

// Tokens of an earlier answer come first. The text's beginning is then in front of them.
void put_before(const std::vector<TokenId>& before, const Tokenizer& tokenizer, Prompt& prompt) {
  if (before.empty()) return;
  const bool begins = !prompt.tokens.empty() && prompt.tokens.front() == tokenizer.bos();
  const auto own = prompt.tokens.begin() + (begins ? 1 : 0);
  std::vector<TokenId> all = before;
  all.insert(all.end(), own, prompt.tokens.end());
  const auto count = static_cast<std::uint32_t>(before.size());
  for (PromptSegment& s : prompt.segments) {
    s.begin += s.begin == 0 ? count : count - (begins ? 1 : 0);
    s.end += count - (begins ? 1 : 0);
  }
  prompt.segments.insert(prompt.segments.begin(), {"context", 0, count});
  prompt.tokens = std::move(all);
}

constexpr std::size_t kPromptsMax = 1024;

bool is_token(const Json& t, std::uint32_t vocabulary) {
  return t.is_number_unsigned() && t.get<std::uint64_t>() < vocabulary;
}

}  // namespace

std::size_t prompt_bytes_max(const Runtime& runtime) {
  constexpr std::size_t kSpare = 4;  // some tokenizers leave bytes out
  const std::size_t piece = std::max<std::size_t>(runtime.tokenizer().longest_piece(), 16);
  return std::max(runtime.context() * piece * kSpare, std::size_t{1} << 20);
}

std::optional<ApiError> parse_prompts(const Json& prompt, std::uint32_t vocabulary,
                                      GenerationRequest& asked) {
  const std::string field(asked.prompt_field);
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
    return bad_value(field, "must be a string, a list of strings, tokens, or lists of tokens");
  if (prompt.front().is_number()) {
    auto p = tokens_of(prompt);
    if (!p) return bad_value(field, "must hold tokens of this model only");
    asked.prompts.push_back(std::move(*p));
    return std::nullopt;
  }
  if (prompt.size() > kPromptsMax)
    return bad_value(field, fmt::format("must hold at most {} prompts", kPromptsMax));
  for (const Json& one : prompt) {
    if (prompt.front().is_string() && one.is_string()) {
      asked.prompts.push_back({.text = one.get<std::string>()});
    } else if (prompt.front().is_array() && one.is_array() && !one.empty()) {
      auto p = tokens_of(one);
      if (!p) return bad_value(field, "must hold tokens of this model only");
      asked.prompts.push_back(std::move(*p));
    } else {
      return bad_value(field, "must not mix strings, tokens and empty lists");
    }
  }
  return std::nullopt;
}

std::optional<ApiError> render_text(const GenerationRequest& asked, const Runtime& runtime,
                                    std::string& out) {
  RenderedConversation c;
  if (auto error = render(asked, runtime, c)) return error;
  if (asked.continue_final_message)
    if (auto error = cut_after_last(c)) return error;
  out = joined(c.parts);
  return std::nullopt;
}

std::optional<ApiError> make_prompts(const GenerationRequest& asked, const Runtime& runtime,
                                     std::vector<Prompt>& out) {
  const Tokenizer& tokenizer = runtime.tokenizer();
  if (auto error = check_length(asked.prediction.size(), asked, runtime)) return error;
  if (!asked.prediction.empty() && asked.prompts.size() > 1)
    return bad_value("prediction", "is for a single prompt");
  std::size_t total = 0;
  const auto add = [&](Prompt prompt) {
    truncate(asked, runtime, prompt);
    total += prompt.tokens.size();
    auto error = check_tokens(prompt.tokens.size(), total, asked, runtime);
    if (prompt.segments.empty())
      prompt.segments = {{"prompt", 0, static_cast<std::uint32_t>(prompt.tokens.size())}};
    out.push_back(std::move(prompt));
    return error;
  };
  if (asked.chat) {
    Prompt prompt;
    if (auto error = chat_prompt(asked, runtime, prompt)) return error;
    if (auto error = stopped()) return error;
    put_before(asked.before, tokenizer, prompt);
    if (auto error = add(std::move(prompt))) return error;
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
    if (p.text_tokens_max > 0 && prompt.tokens.size() > p.text_tokens_max)
      prompt.tokens.resize(p.text_tokens_max);
    if (!p.scored.empty()) add_scored(p, tokenizer, prompt);
    if (auto error = stopped()) return error;
    if (prompt.tokens.empty())
      return bad_value(std::string(asked.prompt_field), "must not be empty");
    if (auto error = add(std::move(prompt))) return error;
  }
  return std::nullopt;
}

Request make_request(const GenerationRequest& asked, const Prompt& prompt, const Runtime& runtime,
                     std::string id) {
  Request r;
  r.id = std::move(id);
  r.family = asked.family;
  r.client = asked.client;
  r.model = asked.model;
  r.explain = asked.kv.report_explain || !asked.compare_to.empty();
  if (!asked.compare_to.empty()) r.compare_to = request_ids(asked.compare_to);
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
  r.prompt_logprobs_from = std::max(prompt.scored_from, 1u);
  r.pooling = asked.embedding.pooling;
  if (!asked.prediction.empty()) {
    r.prediction = runtime.tokenizer().encode(asked.prediction, {.add_special = false});
    r.prediction.resize(std::min<std::size_t>(r.prediction.size(), runtime.context()));
    r.prediction.shrink_to_fit();
  }
  r.kv = asked.kv.policy;
  for (const Prompt::Breakpoint& b : prompt.breakpoints)  // the last leases, in this order
    if (b.ttl > 0)
      r.kv.leases.push_back({.end_token = b.tokens,
                             .ttl = b.ttl,
                             .pin = true,
                             .breakpoint = true,
                             .label = "breakpoint"});
  r.priority = asked.priority;
  return r;
}

}  // namespace quire
