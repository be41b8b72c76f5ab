// capi/quire.cc - the C interface, on top of engine/stepper.h. No exception crosses it.
#include "quire.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "engine/chat.h"
#include "engine/retain.h"
#include "engine/runtime.h"
#include "engine/selecting.h"
#include "engine/stepper.h"

// Lives until it is closed and its last session is freed, in any order.
struct quire_model {
  explicit quire_model(std::unique_ptr<quire::Runtime> r)
      : runtime(std::move(r)), stepper(*runtime) {}

  std::unique_ptr<quire::Runtime> runtime;
  quire::Stepper stepper;
  std::atomic<std::uint32_t> holders{1};

  void hold() { ++holders; }
  void release() {
    if (--holders == 0) delete this;
  }
};

struct quire_session {
  quire_model* model;
  quire::Sequence sequence;
  std::vector<quire::TokenId> tokens;  // all that were fed
  std::vector<float> logits;           // after the last computed token
  quire::TokenCounts counts;
  std::uint32_t capacity, cached = 0;
  std::uint32_t prompt_length =
      0;  // tokens fed before the first step; penalties tell them from the answer
  bool attached = false;
  std::shared_ptr<const quire::RetainPolicy> policy = {};  // what it begins with
  quire::ProgramList programs = {};
  void count_tokens() {
    counts = {};
    const auto prompt = std::min<std::size_t>(prompt_length, tokens.size());
    counts.add_prompt(std::span(tokens).first(prompt));
    for (const quire::TokenId t : std::span(tokens).subspan(prompt)) counts.add_generated(t);
  }
};

namespace {

using quire::Code;
using quire::Error;

thread_local std::string last_error;

int code_of(const Error& error) {
  last_error = error.message;
  switch (error.code) {
    case Code::invalid:
      return QUIRE_INVALID;
    case Code::not_found:
      return QUIRE_NOT_FOUND;
    case Code::exhausted:
      return QUIRE_EXHAUSTED;
    case Code::corrupt:
      return QUIRE_CORRUPT;
    case Code::unsupported:
      return QUIRE_UNSUPPORTED;
    default:
      return QUIRE_FAILED;
  }
}

int invalid(const char* message) { return code_of(Error{Code::invalid, message}); }

// True, with the error set, if an argument that must not be NULL is NULL.
bool lacks(const char* call, bool missing) {
  if (missing) code_of(Error{Code::invalid, std::string(call) + ": an argument is NULL"});
  return missing;
}

quire::SamplingOptions sampling_of(const quire_sampling* s) {
  quire::SamplingOptions o;
  if (s == nullptr) return o;
  o.temperature = s->temperature;
  o.top_p = s->top_p;
  o.min_p = s->min_p;
  o.typical_p = s->typical_p;
  o.top_k = s->top_k;
  o.repetition_penalty = s->repetition_penalty;
  o.presence_penalty = s->presence_penalty;
  o.frequency_penalty = s->frequency_penalty;
  o.seed = s->seed;
  return o;
}

bool is_sparse(const quire_session& s) {
  return s.model->runtime->cache().geometry(s.sequence.root()).sparse();
}

// Computes all but the last pending token of a session. The last one joins the common step. Of a
// sparse prompt the whole last block joins it, because blocks are read whole.
quire::Status catch_up(quire_session& s) {
  quire::Runtime& r = *s.model->runtime;
  if (!s.attached) {
    const auto length = static_cast<std::uint32_t>(s.tokens.size());
    TRY(const quire::RootId root, r.tenant_root(""));
    if (s.policy) s.programs.add(std::make_unique<quire::Retaining>(r, s.policy, length, root));
    if (r.select())
      s.programs.add(std::make_unique<quire::Selecting>(r, *r.select(), length, root));
    quire::SequenceOptions options{.root = root,
                                   .token_capacity = s.capacity,
                                   .publish_generated = !r.cache().geometry(root).sparse()};
    s.programs.open(options);
    TRY(s.sequence, r.cache().open(options));
    s.cached = r.cache().attach(s.sequence, s.tokens).tokens;
    s.attached = true;
    s.prompt_length = length;
    s.count_tokens();
  }
  const auto last = static_cast<std::uint32_t>(s.tokens.size()) - 1;
  const std::uint32_t block = r.geometry().tokens_per_block,
                      until = is_sparse(s) && last < s.prompt_length ? last / block * block : last;
  while (s.sequence.length() < until) {
    const std::uint32_t at = s.sequence.length(),
                        rows = std::min({s.model->stepper.chunk_rows(s.sequence, 0), until - at,
                                         s.programs.rows_max(at)});
    const quire::StepItem item{&s.sequence, std::span(s.tokens).subspan(at, rows),
                               quire::Logits::none, &s.programs};
    TRY([[maybe_unused]] const auto logits, s.model->stepper.run({&item, 1}));
  }
  return {};
}

}  // namespace

const char* quire_version(void) { return QUIRE_VERSION; }
const char* quire_last_error(void) { return last_error.c_str(); }

quire_options quire_options_default(void) { return {}; }

quire_sampling quire_sampling_default(void) {
  return {.temperature = 0,
          .top_p = 1,
          .min_p = 0,
          .typical_p = 1,
          .top_k = 0,
          .repetition_penalty = 1,
          .presence_penalty = 0,
          .frequency_penalty = 0,
          .seed = 0};
}

quire_model* quire_open(const char* path, const quire_options* options) {
  const quire_options o = options ? *options : quire_options_default();
  if (path == nullptr) return invalid("quire_open: path is NULL"), nullptr;
  quire::RuntimeOptions r{
      .threads = o.threads,
      .activations = o.activations_int16 ? quire::Activations::int16 : quire::Activations::int8,
      .kv_cache_bytes = o.kv_cache_bytes,
      .context = o.context};
  if (o.kv_format) r.kv_format = o.kv_format;
  if (o.kv_budget) {
    auto policy = quire::parse_retain_policy(o.kv_budget);
    if (!policy.ok()) return code_of(policy.error()), nullptr;
    r.kv_retain = std::make_shared<quire::RetainPolicy>(std::move(policy.value()));
  }
  if (o.kv_select) {
    auto policy = quire::parse_select_policy(o.kv_select);
    if (!policy.ok()) return code_of(policy.error()), nullptr;
    r.kv_select = std::make_shared<quire::SelectPolicy>(std::move(policy.value()));
  }
  if (o.block_size) r.tokens_per_block = o.block_size;
  if (r.tokens_per_block != 16 && r.tokens_per_block != 32 && r.tokens_per_block != 64)
    return invalid("quire_open: block_size must be 16, 32 or 64"), nullptr;
  auto runtime = quire::Runtime::open(path, r);
  if (!runtime.ok()) return code_of(runtime.error()), nullptr;
  return new quire_model(std::move(runtime.value()));
}

void quire_close(quire_model* model) {
  if (model != nullptr) model->release();
}
uint32_t quire_vocabulary(const quire_model* model) {
  return lacks("quire_vocabulary", !model) ? 0 : model->runtime->config().vocabulary;
}
uint32_t quire_context(const quire_model* model) {
  return lacks("quire_context", !model) ? 0 : model->runtime->context();
}

int64_t quire_tokenize(const quire_model* model, const char* text, size_t bytes, int parse_special,
                       uint32_t* ids, size_t capacity) {
  if (lacks("quire_tokenize", !model || (!text && bytes > 0) || (!ids && capacity > 0)))
    return QUIRE_INVALID;
  const auto tokens =
      model->runtime->tokenizer().encode({text, bytes}, {.parse_special = parse_special != 0});
  std::copy_n(tokens.begin(), std::min(capacity, tokens.size()), ids);
  return static_cast<int64_t>(tokens.size());
}

int64_t quire_chat(const quire_model* model, const quire_message* messages, size_t count,
                   uint32_t* ids, size_t capacity) {
  if (lacks("quire_chat", !model || (!messages && count > 0) || (!ids && capacity > 0)))
    return QUIRE_INVALID;
  quire::Json all = quire::Json::array();
  for (size_t i = 0; i < count; ++i) {
    if (lacks("quire_chat", !messages[i].role || !messages[i].content)) return QUIRE_INVALID;
    all.push_back({{"role", messages[i].role}, {"content", messages[i].content}});
  }
  const auto tokens = quire::render_chat(*model->runtime, all, {});
  if (!tokens.ok()) return code_of(tokens.error());
  std::copy_n(tokens.value().begin(), std::min(capacity, tokens.value().size()), ids);
  return static_cast<int64_t>(tokens.value().size());
}

int64_t quire_token_text(const quire_model* model, uint32_t id, char* text, size_t capacity) {
  if (lacks("quire_token_text", !model || (!text && capacity > 0))) return QUIRE_INVALID;
  if (id >= quire_vocabulary(model)) return invalid("quire_token_text: no token has this number");
  const std::string_view piece = model->runtime->tokenizer().piece(id);
  std::memcpy(text, piece.data(), std::min(capacity, piece.size()));
  return static_cast<int64_t>(piece.size());
}

int quire_is_end(const quire_model* model, uint32_t id) {
  if (lacks("quire_is_end", !model)) return QUIRE_INVALID;
  return model->runtime->tokenizer().is_end_of_generation(id) ? 1 : 0;
}

quire_session* quire_session_new(quire_model* model, uint32_t capacity) {
  if (lacks("quire_session_new", !model)) return nullptr;
  if (capacity == 0 || capacity > model->runtime->context())
    return invalid("quire_session_new: capacity must be 1 to the model's context"), nullptr;
  model->hold();
  return new quire_session{.model = model,
                           .sequence = {},
                           .tokens = {},
                           .logits = {},
                           .counts = {},
                           .capacity = capacity,
                           .policy = model->runtime->retain()};
}

void quire_session_free(quire_session* session) {
  if (session == nullptr) return;
  quire_model* const model = session->model;
  delete session;
  model->release();
}

int quire_budget(quire_session* s, const char* kv_budget) {
  if (lacks("quire_budget", !s)) return QUIRE_INVALID;
  if (s->attached) return invalid("quire_budget: the session has been stepped; say it before");
  if (kv_budget == nullptr) return s->policy.reset(), QUIRE_OK;
  const quire::Runtime& r = *s->model->runtime;
  auto policy = quire::parse_retain_policy(kv_budget);
  if (!policy.ok()) return code_of(policy.error());
  if (const auto fine = r.check_retain(policy.value()); !fine.ok()) return code_of(fine.error());
  if (r.select())
    if (const auto fine = r.check_select(*r.select(), nullptr, &policy.value()); !fine.ok())
      return code_of(fine.error());
  s->policy = std::make_shared<quire::RetainPolicy>(std::move(policy.value()));
  return QUIRE_OK;
}

int quire_feed(quire_session* s, const uint32_t* ids, size_t count) {
  if (lacks("quire_feed", !s || (!ids && count > 0))) return QUIRE_INVALID;
  if (count > s->capacity - s->tokens.size())
    return invalid("quire_feed: the session's capacity is spent");
  for (size_t i = 0; i < count; ++i)
    if (ids[i] >= quire_vocabulary(s->model))
      return invalid("quire_feed: a token is outside the vocabulary");
  if (s->attached)
    for (size_t i = 0; i < count; ++i) s->counts.add_generated(ids[i]);
  s->tokens.insert(s->tokens.end(), ids, ids + count);
  return QUIRE_OK;
}

int quire_step(quire_session* const* sessions, size_t count) {
  if (lacks("quire_step", !sessions && count > 0)) return QUIRE_INVALID;
  for (size_t i = 0; i < count; ++i)
    if (lacks("quire_step", !sessions[i])) return QUIRE_INVALID;
  std::vector<quire::StepItem> items;
  std::vector<quire_session*> owners;
  for (size_t i = 0; i < count; ++i) {
    quire_session& s = *sessions[i];
    if (s.model != sessions[0]->model) return invalid("quire_step: sessions of different models");
    if (s.tokens.empty()) return invalid("quire_step: a session was fed nothing");
    if (std::find(sessions, sessions + i, &s) != sessions + i)
      return invalid("quire_step: a session is named twice");
    if (const auto done = catch_up(s); !done.ok()) return code_of(done.error());
    if (s.sequence.length() >= s.tokens.size()) continue;  // nothing new: its logits stand
    items.push_back({&s.sequence, std::span(s.tokens).subspan(s.sequence.length()),
                     quire::Logits::last, &s.programs});
    owners.push_back(&s);
  }
  const std::size_t vocabulary = count ? quire_vocabulary(sessions[0]->model) : 0;
  const std::size_t rows = count ? sessions[0]->model->runtime->executor().traits().rows_max : 1;
  for (std::size_t at = 0, end = 0; at < items.size(); at = end) {
    for (std::size_t taken = 0; end < items.size() && taken + items[end].tokens.size() <= rows;
         ++end)
      taken += items[end].tokens.size();
    const auto part = std::span(items).subspan(at, end - at);
    const auto logits = sessions[0]->model->stepper.run(part);
    if (!logits.ok()) return code_of(logits.error());
    for (std::size_t i = 0; i < part.size(); ++i) {
      const auto row = logits.value().subspan(i * vocabulary, vocabulary);
      owners[at + i]->logits.assign(row.begin(), row.end());
    }
  }
  return QUIRE_OK;
}

const float* quire_logits(const quire_session* s) {
  if (lacks("quire_logits", !s)) return nullptr;
  return s->logits.empty() ? nullptr : s->logits.data();
}

int quire_sample(quire_session* s, const quire_sampling* sampling, uint32_t* id) {
  if (lacks("quire_sample", !s || !id)) return QUIRE_INVALID;
  if (s->logits.empty() || s->sequence.length() < s->tokens.size())
    return invalid("quire_sample: step the session first");
  const quire::SamplingOptions options = sampling_of(sampling);
  if (const auto fine = options.check(quire_vocabulary(s->model)); !fine.ok())
    return code_of(fine.error());
  std::vector<float> row = s->logits;
  *id = s->model->runtime->sampler()
            .sample(row, options, s->counts, 0, static_cast<std::uint32_t>(s->tokens.size()))
            .token;
  return QUIRE_OK;
}

uint32_t quire_length(const quire_session* s) {
  return lacks("quire_length", !s) ? 0 : static_cast<uint32_t>(s->tokens.size());
}
uint32_t quire_cached(const quire_session* s) { return lacks("quire_cached", !s) ? 0 : s->cached; }
uint64_t quire_kv_bytes(const quire_session* s) {
  if (lacks("quire_kv_bytes", !s) || !s->sequence.is_open()) return 0;
  return s->model->runtime->cache().bytes(s->sequence);
}

quire_session* quire_fork(quire_session* s) {
  if (lacks("quire_fork", !s)) return nullptr;
  if (!s->attached) {  // nothing computed yet: a session of its own with the same tokens
    quire_session* other = quire_session_new(s->model, s->capacity);
    if (other != nullptr) {
      other->tokens = s->tokens;
      other->policy = s->policy;
    }
    return other;
  }
  auto sequence = s->model->runtime->cache().fork(s->sequence);
  if (!sequence.ok()) return code_of(sequence.error()), nullptr;
  s->model->hold();
  return new quire_session{.model = s->model,
                           .sequence = std::move(sequence.value()),
                           .tokens = s->tokens,
                           .logits = s->logits,
                           .counts = s->counts,
                           .capacity = s->capacity,
                           .cached = s->cached,
                           .prompt_length = s->prompt_length,
                           .attached = true,
                           .policy = s->policy,
                           .programs = s->programs.fork_list()};
}

int quire_truncate(quire_session* s, uint32_t length) {
  if (lacks("quire_truncate", !s)) return QUIRE_INVALID;
  if (length > s->tokens.size()) return invalid("quire_truncate: longer than the session");
  if (s->attached && length <= s->prompt_length && is_sparse(*s))
    return code_of(Error{Code::unsupported,
                         "quire_truncate: with kv_select a prompt is read once, as a whole"});
  // The last token is computed again, as its logits are what the next step is for.
  const std::uint32_t keep = length > 0 ? length - 1 : 0;
  if (s->attached && s->sequence.length() > keep) {
    if (const auto fine = s->programs.truncate(keep); !fine.ok())
      return code_of(Error{fine.error().code, "quire_truncate: " + fine.error().message});
    if (keep > 0) {
      s->model->runtime->cache().truncate(s->sequence, keep);
    } else {  // nothing stays: it begins anew
      s->sequence.close();
      s->programs = {};
      s->attached = false;
    }
  }
  s->tokens.resize(length);
  s->logits.clear();
  s->count_tokens();
  return QUIRE_OK;
}
