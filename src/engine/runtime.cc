#include "engine/runtime.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <thread>

#include "base/check.h"
#include "engine/combine.h"
#include "engine/open_tiers.h"
#include "engine/text_parts.h"
#include "engine/weights_digest.h"
#include "kv/device_memory.h"
#include "kv/layout.h"
#include "model/cpu_executor.h"
#include "model/cuda_executor.h"

namespace quire {
namespace {

std::uint64_t available_memory() {
  std::ifstream info("/proc/meminfo");
  std::string key, unit;
  std::uint64_t kilobytes = 0;
  while (info >> key >> kilobytes) {
    if (key == "MemAvailable:") return kilobytes * 1024;
    std::getline(info, unit);
  }
  return static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
         static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

// Reserves addresses for four times the budget, so that the cache can grow while it runs
// (KvCache::resize). Addresses cost nothing until they are filled. If they are scarce (ulimit -v),
// the cache can grow less.
Result<std::unique_ptr<Memory>> reserve_to_grow(std::uint64_t budget) {
  for (const std::uint64_t times : {4u, 2u})
    if (budget < (std::uint64_t{1} << 62) / times)
      if (auto memory = reserve_host_memory({.bytes = times * budget}); memory.ok()) return memory;
  return reserve_host_memory({.bytes = budget});
}

std::uint64_t device_memory_left(const Executor& executor) {
  CudaDeviceInfo info;
  const auto& cuda = static_cast<const CudaExecutor&>(executor);
  CHECK(cuda.device_model().device().api->open(0, &info) == 0);
  return info.free_bytes;
}

Result<std::unique_ptr<Memory>> reserve_on_device(const Executor& executor, std::uint64_t budget) {
  const DeviceModel& device = static_cast<const CudaExecutor&>(executor).device_model();
  return reserve_device_memory(device.device(), device.stream(),
                               std::max(budget, device.device().info.memory_bytes));
}

Result<std::unique_ptr<Executor>> load_executor(const ModelSource& source, ThreadPool& pool,
                                                const RuntimeOptions& options) {
  const bool on_device = options.device == DeviceKind::cuda;
  const ModelOptions model{.device = options.device,
                           .isa = options.isa,
                           .activations = options.activations,
                           .rows_max = options.rows_max ? options.rows_max
                                       : on_device      ? 8192u
                                                        : 512u,
                           .fast = options.fast,
                           .weights = options.weights};
  if (on_device) {
    TRY(std::unique_ptr<Executor> executor, CudaExecutor::load(source, model));
    return executor;
  }
  TRY(std::unique_ptr<Executor> executor, CpuExecutor::load(source, pool, model));
  return executor;
}

// Identifies the file for this process. Blocks that outlive a process carry the digest of the bytes
// instead.
Digest file_identity(const std::string& path) {
  struct stat info {};
  ::stat(path.c_str(), &info);
  return sha256(path + '\0' + std::to_string(info.st_size) + '\0' +
                std::to_string(info.st_mtim.tv_sec) + '.' + std::to_string(info.st_mtim.tv_nsec) +
                '\0' + std::to_string(info.st_ino));
}

}  // namespace

Result<std::unique_ptr<Runtime>> Runtime::open(const std::string& path,
                                               const RuntimeOptions& options) {
  TRY(ModelSource opened,
      options.random_weights ? ModelSource::open_random(path) : ModelSource::open(path));
  if (options.context) opened.serve_context(options.context);
  if (options.loading) opened.watch(options.loading);
  RuntimeParts parts;
  const auto source = std::make_shared<ModelSource>(std::move(opened));
  parts.source = source;
  if (options.device == DeviceKind::cuda && options.tokens_per_block != kCudaPage)
    return Error{
        Code::unsupported,
        fmt::format("blocks of {} tokens on a GPU; there they have {}: leave --block-size out",
                    options.tokens_per_block, kCudaPage)};
  const std::uint32_t cores = std::max(1u, std::thread::hardware_concurrency());
  parts.pool = std::make_unique<ThreadPool>(options.threads ? options.threads : cores);

  // The vocabulary is read while the weights are packed: both take a noticeable part of starting
  // up.
  Result<TextParts> text = Error{Code::unavailable, "not read"};
  TRY_STATUS(open_tiers(options, parts));
  Result<Digest> weights = file_identity(path);
  std::thread reader([&] { text = read_text_parts(*source); });
  std::thread hasher([&] {
    if (!parts.tiers) return;
    weights = weights_digest(path, parts.sessions ? options.kv_dir + "/weights" : "");
  });
  Result<std::unique_ptr<Executor>> executor = load_executor(*source, *parts.pool, options);
  reader.join();
  hasher.join();
  if (!executor.ok()) return executor.error();
  if (!text.ok()) return text.error();
  if (!weights.ok()) return weights.error();
  TRY_STATUS(source->detach());
  parts.executor = std::move(executor.value());
  parts.tokenizer = std::make_shared<const Tokenizer>(std::move(text.value().tokenizer));
  parts.chat_template = std::move(text.value().chat_template);
  parts.weights = weights.value();
  if (options.random_weights) parts.weights[0] ^= 1;  // the file holds none
  // A step has at most one sequence per row. As many again may wait with a cursor or be parked.
  const std::uint32_t rows = parts.executor->traits().rows_max;
  parts.cache.sequences_max = std::max(4096u, 4 * rows);
  parts.cache.step_items_max = std::max(1024u, rows);
  return assemble(std::move(parts), options);
}

Result<std::unique_ptr<Runtime>> Runtime::assemble(RuntimeParts parts,
                                                   const RuntimeOptions& options) {
  std::unique_ptr<Runtime> r(new Runtime());
  const bool on_device = options.device == DeviceKind::cuda;
  r->source_ = std::move(parts.source);
  r->pool_ = std::move(parts.pool);
  r->executor_ = std::move(parts.executor);
  r->tokenizer_ = std::move(parts.tokenizer);
  r->template_ = std::move(parts.chat_template);
  r->secret_ = parts.cache.secret;
  r->sessions_ = std::move(parts.sessions);
  if (parts.clock) r->clock_ = parts.clock;
  r->isa_ = options.isa;
  r->vector_ = &vector_kernels(options.isa);
  r->sampler_ = std::make_unique<Sampler>(*r->vector_, r->config().vocabulary);
  r->context_ = options.context ? options.context : r->config().context;

  r->tokens_per_block_ = options.tokens_per_block;
  r->calibrations_ = options.calibrations;
  r->kv_format_ = options.kv_format;
  if (on_device && r->kv_format_ == "auto") r->kv_format_ = "bf16";
  if (r->kv_format_ == "auto") {
    TRY(const TensorView q, r->source_->tensor("blk.0.attn_q.weight"));
    r->kv_format_ = q.type == DType::f32 ? "f32" : "f16";
  }
  if (!options.kv_plan.empty() && options.kv_plan.size() == r->config().layers) {
    r->plan_.emplace(options.kv_plan[0]);
    r->plan_->by_layer = options.kv_plan;
  }
  if (r->kv_format_ == "planned") {
    if (!r->plan_)
      return Error{Code::not_found,
                   "KV format planned: this model has no plan; `quire probe` makes one"};
    r->storage_ = r->plan_;
  } else {
    TRY(const Format* format, find_format(r->kv_format_));
    r->storage_.emplace(format);
  }
  r->storage_->recent_exact = options.kv_recent_exact;
  r->storage_->sinks = options.kv_sinks;
  r->storage_->skip_layers = options.kv_skip_layers;
  r->storage_->window = options.kv_window;
  if (options.kv_select && !options.kv_select->answers())
    r->storage_->prefill = options.kv_select->prefill;
  r->kv_format_ = r->storage_->name();
  TRY_STATUS(r->check_storage(*r->storage_));
  r->retain_ = options.kv_retain;
  if (r->retain_) TRY_STATUS(r->check_retain(*r->retain_));
  if (options.kv_select) TRY_STATUS(r->check_select(*options.kv_select, nullptr, r->retain_.get()));
  if (options.kv_select && options.kv_select->answers()) r->select_ = options.kv_select;
  const Geometry geometry = r->geometry(&*r->storage_);
  r->kv_resident_bytes_ = options.kv_resident_bytes;
  const std::uint64_t budget = r->kv_cache_bytes_ =
      options.kv_cache_bytes
          ? options.kv_cache_bytes
          : (on_device ? device_memory_left(*r->executor_) : available_memory()) / 10 * 8;
  if (on_device && budget > device_memory_left(*r->executor_))
    return Error{Code::exhausted,
                 fmt::format("--kv-cache-memory of {:.1f} GiB: after the weights {:.1f} GiB are "
                             "free on the GPU; leave it out to take 80 % of that",
                             static_cast<double>(budget) / 0x1p30,
                             static_cast<double>(device_memory_left(*r->executor_)) / 0x1p30)};
  std::unique_ptr<Memory> memory = std::move(parts.memory);
  if (!memory) {
    TRY(memory, on_device ? reserve_on_device(*r->executor_, budget) : reserve_to_grow(budget));
  }
  r->memory_page_ = memory->page_bytes();
  CacheOptions& cache = parts.cache;
  cache.budget_bytes = budget;
  cache.tokens_per_block = options.tokens_per_block;
  cache.evictor = options.evictor;
  cache.pin_budget = options.pin_budget;
  cache.tenant_pin_share = options.tenant_pin_share;
  if (parts.tiers) {
    r->tiers_ = std::move(parts.tiers);
    if (r->sessions_) r->kv_dir_ = options.kv_dir;  // it could be opened
    r->tiers_->set_secret(cache.secret);
    double token_bytes = 0;
    for (const LayerGroup& g : geometry.groups) token_bytes += geometry.bytes_per_token(g);
    // What four steps compute, and no more than a quarter of the cache.
    if (!parts.clock)
      r->tiers_->need_queue(std::min<std::uint64_t>(
          budget / 4,
          static_cast<std::uint64_t>(4 * token_bytes) * r->executor_->traits().rows_max));
    cache.below = r->tiers_.get();
  }
  r->cache_ = std::make_unique<KvCache>(cache, std::move(memory), *r->clock_);
  r->identity_ = {.weights = parts.weights,
                  .adapter = {},
                  .layout = layout_digest(geometry),
                  .position_scheme = position_scheme(r->config()),
                  .tokens_per_block = options.tokens_per_block,
                  .numerics = std::to_string(r->executor_->traits().numerics),
                  .tenant = {}};
  TRY(r->root_, r->cache_->root(r->identity_, geometry));
  r->root_hold_ = RootHold(*r->cache_, r->root_);
  r->geometry_ = r->cache_->geometry(r->root_);
  return r;
}

Status Runtime::check_storage(const StoragePolicy& storage) const {
  for (const std::uint32_t layer : storage.skip_layers)
    if (layer >= config().layers)
      return Error{Code::invalid,
                   fmt::format("no layer {} to leave exact: this model has {}, the first is 0",
                               layer, config().layers)};
  Geometry wanted = geometry(&storage);
  TRY_STATUS(check_geometry(wanted));
  TRY_STATUS(use_calibrations(wanted, calibrations_));
  return executor_->check_storage(storage, wanted);
}

Status Runtime::check_retain(const RetainPolicy& policy, const StoragePolicy* storage,
                             std::uint32_t choices, std::uint32_t beams) const {
  const Geometry stored = geometry(storage);
  return check_combination({.geometry = &stored,
                            .retain = &policy,
                            .choices = choices,
                            .beams = beams,
                            .page_work = executor_->traits().page_work,
                            .context = context_});
}

Status Runtime::check_select(const SelectPolicy& policy, const StoragePolicy* storage,
                             const RetainPolicy* retain, std::uint32_t beams) const {
  const Geometry stored = geometry(storage);
  return check_combination({.geometry = &stored,
                            .retain = retain,
                            .select = &policy,
                            .beams = beams,
                            .page_work = executor_->traits().page_work,
                            .context = context_});
}

Geometry Runtime::geometry(const StoragePolicy* storage) const {
  Geometry made = executor_->geometry(tokens_per_block_, storage ? *storage : *storage_);
  // check_storage refuses formats that need a calibration and have none.
  if (const Status known = use_calibrations(made, calibrations_); !known.ok()) return made;
  return made;
}

RootIdentity Runtime::identity(std::string_view tenant, const StoragePolicy* storage) const {
  RootIdentity made = identity_;
  made.tenant = tenant;
  if (storage) made.layout = layout_digest(geometry(storage));
  return made;
}

Result<RootId> Runtime::tenant_root(std::string_view tenant, const StoragePolicy* storage) {
  return cache_->root(identity(tenant, storage), geometry(storage));
}

std::optional<RootId> Runtime::find_root(std::string_view tenant,
                                         const StoragePolicy* storage) const {
  return cache_->find_root(identity(tenant, storage), geometry(storage));
}

BlockKey Runtime::tenant_key(std::string_view tenant, const StoragePolicy* storage) const {
  return root_key(secret_, identity(tenant, storage));
}

Result<Sequence> Runtime::open_sequence(std::uint32_t token_capacity) {
  return cache_->open({.root = root_, .token_capacity = token_capacity});
}

Result<Sequence> Runtime::empty_sequence(std::uint32_t token_capacity) {
  TRY(Sequence s, cache_->open({.root = root_, .token_capacity = token_capacity, .reuse = false}));
  cache_->attach(s, {});
  return s;
}

void Runtime::copy_block(ArenaOffset to, ArenaOffset from, std::size_t bytes) {
  executor_->copy_block(arena_at(cache_->arena(), to), arena_at(cache_->arena(), from), bytes);
}

}  // namespace quire
