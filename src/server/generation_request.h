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
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "engine/request.h"

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
  Json schema = nullptr;                  // json_schema; tool_calls: see server/grammar.cc
  std::string text = {};                  // regex, ebnf
  std::vector<std::string> choices = {};  // choice
  bool strict = false;
  std::string param = {};  // for errors
  bool hint = false;       // the answer may do without it
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
  std::optional<Nanoseconds> breakpoint_ttl;  // of the last explicit breakpoint
};

struct PromptInput {
  std::string text = {};
  std::vector<TokenId> tokens = {};  // used as they are
  bool is_tokens = false;
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
  // (message, byte within its content) of the last explicit cache breakpoint
  std::optional<std::pair<std::size_t, std::size_t>> breakpoint;

  // completions
  std::vector<PromptInput> prompts;
  std::optional<std::string> suffix;
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

  bool logprobs = false;
  std::uint32_t top_logprobs = 0;
  std::int32_t prompt_logprobs = -1;
  bool echo = false, return_token_ids = false;

  bool stream = false, include_usage = false, continuous_usage = false;

  AnswerGrammar grammar;
  KvRequest kv;
  std::int32_t priority = 0;
  std::string family;
  Json extras =
      Json::object();  // what a dialect's parser leaves for its writer; nobody else reads it
};

}  // namespace quire
