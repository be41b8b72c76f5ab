#include "sim/toy_engine.h"

#include <unistd.h>

#include <cstdlib>

#include "base/check.h"
#include "engine/text_parts.h"
#include "model/tiny.h"

namespace quire {
namespace {

// Configuration and vocabulary come from a tiny model's file. Its weights are looked at by nobody but
// methods that ask for the norms of outputs.
struct ToyFiles {
  std::shared_ptr<const ModelSource> source;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<PageNumbers> pages;
};

ToyFiles open_files(const TinyOptions& tiny) {
  std::string path = "/tmp/quire_sim_XXXXXX";
  const int file = mkstemp(path.data());
  CHECK(file >= 0);
  close(file);
  CHECK(write_tiny_gguf(path, tiny).ok());
  auto source = ModelSource::open(path);
  CHECK(source.ok());
  unlink(path.c_str());  // it stays mapped
  auto text = read_text_parts(source.value());
  CHECK(text.ok());
  return {std::make_shared<const ModelSource>(std::move(source.value())),
          std::make_shared<const Tokenizer>(std::move(text.value().tokenizer)),
          std::make_shared<PageNumbers>()};
}

const ToyFiles& toy_files(ToyModel model) {
  static const ToyFiles full =
      open_files({.layers = 3, .query_heads = 4, .kv_heads = 2, .head_dim = 32});
  static const ToyFiles windows = open_files({.architecture = "gemma3",
                                              .layers = 6,
                                              .query_heads = 4,
                                              .kv_heads = 2,
                                              .head_dim = 32,
                                              .window = 40});
  static const ToyFiles latent =
      open_files({.architecture = "deepseek2", .layers = 3, .query_heads = 4});
  return model == ToyModel::full ? full : model == ToyModel::windows ? windows : latent;
}

KeySecret fixed_secret(std::uint32_t bits) {
  std::array<std::uint8_t, KeySecret::kBytes> bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i * 7 + 1);
  return KeySecret(bytes, {.keep_bits = bits});
}

}  // namespace

void AnswerLog::admitted(const Admitted& a) {
  CHECK(!over() && !admission);
  admission = a;
}
void AnswerLog::prompt_logprobs(std::vector<PromptLogprob> p) {
  CHECK(!over());
  prompt = std::move(p);
}
void AnswerLog::token(std::uint32_t choice, const Choice& token) {
  CHECK(!over() && choice < answers.size() && !answers[choice].finish);
  answers[choice].tokens.push_back(token);
}
void AnswerLog::finished(std::uint32_t choice, Finish how) {
  CHECK(!over() && choice < answers.size() && !answers[choice].finish);
  answers[choice].finish = how;
}
void AnswerLog::done(const Done& d) {
  CHECK(!over());
  for (const Answer& a : answers) CHECK(a.finish);
  result = d;
}
void AnswerLog::failed(const Failure& f) {
  CHECK(!over());
  failure = f;
}

ToyEngine::ToyEngine(const ToyEngineOptions& options, ServiceOptions service)
    : opened_(options), service_(std::move(service)) {
  const ToyFiles& files = toy_files(options.model);
  auto real = reserve_host_memory(
      {.bytes = 4 * options.cache_bytes, .page_bytes = options.page_bytes, .huge_pages = false});
  CHECK(real.ok());
  auto memory = std::make_unique<FailingMemory>(std::move(real.value()));
  memory_ = memory.get();
  auto executor = std::make_unique<ToyExecutor>(files.source->config(), clock_, files.pages,
                                                options.draws, options.row_time);
  executor_ = executor.get();
  clock_.advance(1'000'000'000);
  std::unique_ptr<TierLink> tiers;
  for (const MemoryTierOptions& place : options.tiers) {
    const auto opener = [&](Mailbox& mailbox) {
      auto tier = std::make_unique<MemoryTier>(place, clock_, mailbox);
      tiers_.push_back(tier.get());
      return Result<std::unique_ptr<Tier>>(std::move(tier));
    };
    if (tiers)
      CHECK(tiers->add(opener).ok());
    else
      tiers = std::move(TierLink::open({.write = options.tier_write,
                                        .queue_bytes = options.cache_bytes / 4,
                                        .way = Courier::Way::at_once,
                                        .clock = &clock_},
                                       opener)
                            .value());
  }
  auto made = Runtime::assemble({.source = files.source,
                                 .pool = std::make_unique<ThreadPool>(1),
                                 .executor = std::move(executor),
                                 .tokenizer = files.tokenizer,
                                 .memory = std::move(memory),
                                 .clock = &clock_,
                                 .cache = {.secret = fixed_secret(options.key_bits),
                                           .node_capacity = options.nodes,
                                           .sequences_max = 256,
                                           .step_items_max = 64,
                                           .ghost_capacity = 1024,
                                           .journal_capacity = 1024,
                                           .poison = true},
                                 .tiers = std::move(tiers)},
                                {.kv_format = "f16",
                                 .tokens_per_block = kToyBlock,
                                 .kv_cache_bytes = options.cache_bytes,
                                 .context = options.context,
                                 .evictor = options.evictor});
  CHECK(made.ok());
  runtime_ = std::move(made.value());
  executor_->on_nap([this] {
    for (MemoryTier* tier : tiers_) tier->poll();
  });
  engine_ = std::make_unique<Engine>(*runtime_, service_, log_, clock_);
}

ToyEngine::Submitted ToyEngine::submit(Request request, std::shared_ptr<AnswerLog> log, JobId id) {
  PreparedJob made = prepare_job(*runtime_, service_, std::move(request), std::move(log));
  if (!made.job) return {std::move(made.failure), 0};
  made.job->id = id;
  made.job->submitted = clock_.now();
  const std::uint32_t tokens_max = made.job->request.tokens_max;
  engine_->submit(std::move(made.job));
  return {{}, tokens_max};
}

bool ToyEngine::step() {
  for (MemoryTier* const tier : tiers_) tier->poll();
  return engine_->step();
}

bool ToyEngine::run() {
  for (int idle = 0; engine_->has_jobs();) {
    idle = step() ? 0 : idle + 1;
    clock_.advance(1'000'000);
    if (idle > 4000) return false;
  }
  return true;
}

}  // namespace quire
