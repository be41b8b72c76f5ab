// server/generation_request.h - what a client asked for, checked and free of any dialect, before it
// is tokens.
//
// Dialects (server/dialect/dialect.h) make one of a request's body; server/prompt.h makes engine
// Requests of it.
//
//   GenerationRequest asked;
//   if (auto error = dialect.parse(body, context, asked)) return call->refuse(*error);
//   std::vector<Prompt> prompts;
//   if (auto error = make_prompts(asked, runtime, prompts)) return call->refuse(*error);
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "engine/adapters.h"
#include "engine/request.h"
#include "text/grammar.h"

namespace quire {

// What the answer must look like. The server's Grammar (server/grammar.h) makes a TokenMask of it.
struct AnswerGrammar {
  enum class Kind : std::uint8_t {
    none,
    json_object,
    json_schema,
    regex,
    choice,
    ebnf,
    tool_calls
  };
  Kind kind = Kind::none;
  Json schema = nullptr;  // json_schema; tool_calls: the tools, see server/grammar.cc
  std::string text = {};  // regex, ebnf
  std::vector<std::string> choices = {};  // choice
  bool strict = false;
  std::string param = {};  // for errors
  bool hint = false;       // the answer may do without it
  // Of tool_calls.
  ToolCallForm form = {};
  std::vector<TokenId> opening = {};  // control tokens before the text
  bool bare_calls = false;            // they have no marks, although the model's own have
};

struct ToolChoice {
  enum class Kind : std::uint8_t { none, automatic, required };
  Kind kind = Kind::automatic;
  std::vector<std::string> allowed;  // of `required`: one of these; empty: any
};

// The per-request `kv` object and what other fields say about the cache.
struct KvRequest {
  KvPolicy policy;
  std::int32_t priority = 0;  // -100..100
  bool given = false;         // a kv object or header was there: the answer has one, too
  bool report_timing = false, report_blocks = false, report_explain = false, report_seed = false;
  std::string adapter;  // by name, as naming it for the model; empty: none
  // As llama-server has it; empty: the model as it is.
  std::optional<std::vector<ScaledAdapter>> lora;
  std::string session;                      // that it goes on with; empty: none
  bool session_fork = false;                // where it is busy, a fork of it
  std::string session_words = "{}";         // the policy as the client put it, for the session
  std::string session_how;                  // what the request is to its session, for explain
  std::uint32_t breakpoint_tokens_min = 0;  // breakpoints after fewer tokens are ignored
};

// A piece of a conversation, as its client names it. It ends at a byte of a message's content.
struct ConversationPart {
  static constexpr std::size_t kTools = SIZE_MAX;  // a `message`: the tools
  static constexpr std::size_t kWhole = SIZE_MAX;  // an `end`: that of the message, calls included
  std::string name;                                // "system[0]", "messages[3].content[1]"
  std::size_t message = 0, end = kWhole;
};

// The prompt up to here is to be kept so long; 0: nothing more is kept for it.
struct CacheBreakpoint {
  std::size_t message = 0, end = 0;  // as in ConversationPart
  Nanoseconds ttl = 0;

  bool operator==(const CacheBreakpoint&) const = default;
};

struct PromptInput {
  std::string text = {};
  std::vector<TokenId> tokens = {};  // used as they are
  bool is_tokens = false;
  std::uint32_t text_tokens_max = 0;  // of `text`; 0: all
  // What follows the text, encoded on its own. Of the tokens of `scored` the log-probabilities are
  // wanted.
  std::string bridge = {}, scored = {};
};

// An embedding of each prompt instead of an answer.
struct EmbeddingRequest {
  Pooling pooling = Pooling::none;  // none: answers are wanted
  std::uint32_t dimensions = 0;     // the first of the model's; 0: all
  bool normalize = true;            // to length 1
};

// What a dialect's parser leaves for its writer and `extras` cannot hold. Nobody else looks into it.
struct DialectNotes {
  virtual ~DialectNotes() = default;
};

struct GenerationRequest {
  bool chat = false;
  std::string model;
  std::string_view prompt_field = "prompt";  // what the client calls its prompt; for errors

  // chat
  Json messages = Json::array();  // as templates want them: contents are strings
  Json tools = nullptr;
  ToolChoice tool_choice;
  bool parallel_tool_calls = true;
  bool add_generation_prompt = true, continue_final_message = false;
  std::string chat_template;  // another than the model's
  Json template_variables = nullptr;
  std::vector<ConversationPart> parts;       // in the client's order; empty: tools and each message
  std::vector<CacheBreakpoint> breakpoints;  // in the client's order
  std::vector<TokenId> before;               // tokens in front of the conversation, as they are

  // completions
  std::vector<PromptInput> prompts;
  std::optional<std::string> suffix;
  EmbeddingRequest embedding;
  bool rerank = false;  // prompts are documents, and what is scored is the query
  bool parse_special = false, add_special = true;

  SamplingOptions sampling;
  bool seeded = false;
  std::optional<std::uint32_t> tokens_max;
  std::uint32_t tokens_min = 0;
  std::uint32_t n = 1, best_of = 1;
  bool beam_search = false;
  float length_penalty = 1;
  std::vector<std::string> stop;
  std::vector<TokenId> stop_tokens;
  bool ignore_eos = false, include_stop = false, skip_special = true;
  std::vector<std::string> bad_words;
  std::string prediction;            // text that the answer is expected to repeat
  std::int64_t truncate_prompt = 0;  // keep only the last tokens; -1: as many as fit; 0: all
  bool drop_oldest = false;          // messages, until the prompt fits (server/prompt_fit.h)
  std::size_t dropped = 0;           // so many were
  bool counts_only = false;          // the prompt may be longer than the context

  bool logprobs = false;
  std::uint32_t top_logprobs = 0;
  std::int32_t prompt_logprobs = -1;
  bool echo = false, return_token_ids = false;

  bool stream = false, include_usage = false, continuous_usage = false;
  bool whole_at_end = false;  // a stream ends with the whole answer, so that its writer holds it

  AnswerGrammar grammar;
  KvRequest kv;
  std::int32_t priority = 0;
  std::string family;
  std::string client;  // as in engine/request.h
  std::string
      compare_to;  // an earlier answer's id: the writer is told what was not reused, and why
  Json extras =
      Json::object();  // what a dialect's parser leaves for its writer; nobody else reads it
  std::shared_ptr<DialectNotes> notes;
};

}  // namespace quire
