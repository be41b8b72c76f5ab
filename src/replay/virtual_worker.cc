#include "replay/virtual_worker.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "base/stop.h"
#include "kv/evict/evict.h"

namespace quire {
namespace {

constexpr Nanoseconds kIdle = 1'000'000;
constexpr std::size_t kVirtualPage = 4096;  // of memory

KeySecret virtual_secret() {
  std::array<std::uint8_t, KeySecret::kBytes> bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i * 5 + 3);
  return KeySecret(bytes);
}

Status check_options(const VirtualWorkerOptions& o) {
  const auto bad = [](std::string why) { return Error{Code::invalid, std::move(why)}; };
  if (o.capacity_blocks == 0 || o.capacity_blocks > kVirtualBlocksMax)
    return bad(fmt::format("a cache of {} blocks; virtual ones have 1 to {}", o.capacity_blocks,
                           kVirtualBlocksMax));
  if (o.block_size < 16 || o.block_size > 512 || o.block_size % 16 != 0)
    return bad(fmt::format("blocks of {} tokens; 16 to 512, in multiples of 16", o.block_size));
  if (o.step_tokens == 0 || o.step_tokens > (1u << 20) || o.sequences_max == 0 ||
      o.sequences_max > 4096 || o.prompt_tokens == 0)
    return bad("a step has 1 to 2^20 rows, and 1 to 4,096 answers decode together");
  if (!o.costs.known()) return bad("nothing is known of what steps cost; give --costs");
  for (const VirtualTier& t : o.tiers)
    if (t.blocks > kVirtualBlocksMax || !(t.blocks_per_s >= 1e-3) || !(t.first_byte_s >= 0) ||
        t.first_byte_s > 1e6)
      return bad(fmt::format("a tier has up to {} blocks, a rate, and a latency up to 10^6 s",
                             kVirtualBlocksMax));
  TRY_STATUS(find_evict_policy(o.evictor));
  return {};
}

}  // namespace

// Hears what became of one request.
class VirtualWorker::Sink final : public RequestSink {
 public:
  Sink(VirtualWorker& worker, VirtualEnd end, TokenId text)
      : worker_(worker), end_(std::move(end)), text_(text) {}

  void token(std::uint32_t, const Choice&) override {}
  void finished(std::uint32_t, Finish) override {}
  void done(const Done& d) override {
    end_.done = d;
    over();
  }
  void failed(const Failure& f) override {
    end_.problem = f.message;
    over();
  }

 private:
  void over() {
    worker_.executor_->forget(text_);
    worker_.ended_.push_back(std::move(end_));
  }
  VirtualWorker& worker_;
  VirtualEnd end_;
  TokenId text_;
};

Result<std::unique_ptr<VirtualWorker>> VirtualWorker::open(const VirtualWorkerOptions& options) {
  TRY_STATUS(check_options(options));
  std::unique_ptr<VirtualWorker> w(new VirtualWorker(options));
  w->service_ = {.step_tokens = options.step_tokens,
                 .prompt_tokens = std::min(options.prompt_tokens, options.step_tokens),
                 .sequences_max = std::min(options.sequences_max, options.step_tokens)};
  auto executor = std::make_unique<VirtualExecutor>(
      w->clock_, VirtualExecutorOptions{.costs = options.costs,
                                        .rows_max = options.step_tokens,
                                        .context = options.context,
                                        .vocabulary = kMadeUpVocabulary});
  w->executor_ = executor.get();
  const Geometry geometry =
      executor->geometry(options.block_size, StoragePolicy(find_format("f16").value()));
  const std::uint64_t block_bytes = geometry.block_bytes(geometry.groups[0]);
  const std::uint64_t bytes =
      (options.capacity_blocks * block_bytes + kVirtualPage - 1) / kVirtualPage * kVirtualPage;
  TRY(auto memory, reserve_host_memory({.bytes = bytes + (std::size_t{1} << 20),
                                        .page_bytes = kVirtualPage,
                                        .huge_pages = false}));
  std::unique_ptr<TierLink> tiers;
  if (!options.tiers.empty()) {
    TRY(tiers, w->open_tiers(geometry));
  }
  w->clock_.advance(1'000'000'000);  // the cache takes 0 for never
  TRY(w->runtime_,
      Runtime::assemble({.source = nullptr,
                         .pool = std::make_unique<ThreadPool>(1),
                         .executor = std::move(executor),
                         .tokenizer = nullptr,
                         .memory = std::move(memory),
                         .clock = &w->clock_,
                         .cache = {.secret = virtual_secret(),
                                   .node_capacity = static_cast<std::uint32_t>(
                                       std::max<std::uint64_t>(2 * options.capacity_blocks, 65536)),
                                   .sequences_max = 4096,
                                   .step_items_max = std::max(1024u, options.sequences_max),
                                   .journal_capacity = 1024,
                                   .poison = false},
                         .tiers = std::move(tiers)},
                        {.kv_format = "f16",
                         .tokens_per_block = options.block_size,
                         .kv_cache_bytes = bytes,
                         .context = options.context,
                         .evictor = options.evictor}));
  w->engine_ = std::make_unique<Engine>(*w->runtime_, w->service_, w->log_, w->clock_);
  return w;
}

VirtualWorker::~VirtualWorker() = default;

// Tiers hold records as large as their blocks are here, and move them as fast as real ones are moved.
Result<std::unique_ptr<TierLink>> VirtualWorker::open_tiers(const Geometry& geometry) {
  const std::uint64_t block_bytes = geometry.block_bytes(geometry.groups[0]);
  RecordIdentity of;
  of.tokens.resize(options_.block_size);
  const std::uint64_t record_size = record_bytes({of, TierLink::segments(geometry, 0), 0});
  const auto opener = [&](const VirtualTier& tier) {
    return [&, tier](Mailbox& mailbox) {
      auto made = std::make_unique<MemoryTier>(
          MemoryTierOptions{.traits = {.name = tier.shared ? "remote" : "disk",
                                       .shared = tier.shared,
                                       .durable = true,
                                       .capacity_bytes = tier.blocks * record_size},
                            .first_byte_ns = static_cast<Nanoseconds>(tier.first_byte_s * 1e9),
                            .bytes_per_s = tier.blocks_per_s * static_cast<double>(block_bytes)},
          clock_, mailbox);
      tiers_.push_back(made.get());
      return Result<std::unique_ptr<Tier>>(std::move(made));
    };
  };
  const TierLinkOptions way{
      .write = TierWrite::automatic,
      .queue_bytes = std::max<std::uint64_t>(options_.capacity_blocks / 4, 64) * block_bytes,
      .way = Courier::Way::at_once,
      .clock = &clock_};
  TRY(auto link, TierLink::open(way, opener(options_.tiers[0])));
  for (std::size_t i = 1; i < options_.tiers.size(); ++i)
    TRY_STATUS(link->add(opener(options_.tiers[i])));
  return link;
}

void VirtualWorker::advance_to(Nanoseconds time) {
  if (time > clock_.now()) clock_.advance(time - clock_.now());
}

void VirtualWorker::submit(const Ask& ask, Nanoseconds arrived) {
  if (ask.prompt_tokens >= options_.context) {  // before its tokens are made up
    ended_.push_back({.number = ask.number,
                      .prompt_tokens = ask.prompt_tokens,
                      .answer_tokens = ask.answer_tokens,
                      .problem = fmt::format("a prompt of {} tokens; the context has {}",
                                             ask.prompt_tokens, options_.context)});
    return;
  }
  const TokenId text = executor_->recite(made_up_tokens(ask));
  auto sink = std::make_shared<Sink>(*this,
                                     VirtualEnd{.number = ask.number,
                                                .prompt_tokens = ask.prompt_tokens,
                                                .answer_tokens = ask.answer_tokens},
                                     text);
  Request request{.prompt = made_up_tokens(ask, ask.prompt_tokens),
                  .sampling = {.temperature = 0, .logit_bias = {{text, 1.0f}}},
                  .tokens_max = ask.answer_tokens,
                  .cut_tokens_max = true,
                  .ignore_end = true};
  request.kv.reuse = ask.reuse;
  request.kv.write = ask.write;
  request.kv.tenant = ask.tenant;
  request.kv.salt = ask.salt;
  request.kv.priority = ask.priority;
  request.kv.ttl = ask.ttl;
  PreparedJob made = prepare_job(*runtime_, service_, std::move(request), sink);
  if (!made.job) return sink->failed(made.failure);
  made.job->id = static_cast<JobId>(++jobs_);
  made.job->submitted = std::min(clock_.now(), arrived);
  engine_->submit(std::move(made.job));
}

bool VirtualWorker::step(Nanoseconds until) {
  for (MemoryTier* tier : tiers_) tier->poll();
  if (engine_->step() || !engine_->has_jobs()) return true;
  Nanoseconds next = INT64_MAX;
  for (MemoryTier* tier : tiers_) next = std::min(next, tier->next_due());
  if (next == INT64_MAX) next = clock_.now() + kIdle;
  clock_.advance(std::max<Nanoseconds>(std::min(next, until) - clock_.now(), 1000));
  return false;
}

void VirtualWorker::give_up() {
  engine_->fail_all(FailureKind::no_room, "it waited, and nothing else ran");
}

std::vector<VirtualEnd> run_by_the_clock(VirtualWorker& worker, std::span<const Ask> asks) {
  std::vector<VirtualEnd> ends;
  const Nanoseconds start = worker.now();
  constexpr std::uint32_t kIdleMax = 1'000'000;
  std::uint32_t idle = 0;
  for (std::size_t next = 0; (next < asks.size() || worker.busy()) && !stop_asked();) {
    const Nanoseconds due = next < asks.size() ? start + asks[next].arrival : INT64_MAX;
    if (next < asks.size() && (due <= worker.now() || !worker.busy())) {
      worker.advance_to(due);
      worker.submit(asks[next++], due);
      continue;
    }
    idle = worker.step(due) ? 0 : idle + 1;
    if (idle > kIdleMax) worker.give_up();
    for (VirtualEnd& e : worker.take_ended()) ends.push_back(std::move(e));
  }
  for (VirtualEnd& e : worker.take_ended()) ends.push_back(std::move(e));
  return ends;
}

}  // namespace quire
