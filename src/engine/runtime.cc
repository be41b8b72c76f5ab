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
#include "engine/retain.h"
#include "engine/selecting.h"
#include "engine/text_parts.h"
#include "kv/device_memory.h"
#include "kv/layout.h"
#include "model/device_model.h"

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

// Addresses cost nothing until they are filled: with four times the budget the cache can grow while
// it runs (KvCache::resize). Where addresses are scarce (ulimit -v) it may grow less.
Result<std::unique_ptr<Memory>> reserve_to_grow(std::uint64_t budget) {
  for (const std::uint64_t times : {4u, 2u})
    if (budget < (std::uint64_t{1} << 62) / times)
      if (auto memory = reserve_host_memory({.bytes = times * budget}); memory.ok()) return memory;
  return reserve_host_memory({.bytes = budget});
}

std::uint64_t device_memory_left(const Model& model) {
  CudaDeviceInfo info;
  CHECK(model.device()->device().api->open(0, &info) == 0);
  return info.free_bytes;
}

Result<std::unique_ptr<Memory>> reserve_on_device(const Model& model, std::uint64_t budget) {
  const DeviceModel& device = *model.device();
  return reserve_device_memory(device.device(), device.stream(),
                               std::max(budget, device.device().info.memory_bytes));
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

std::size_t logit_count(const StepItem& item) {
  return item.logits == Logits::all ? item.tokens.size() : item.logits == Logits::last ? 1 : 0;
}

}  // namespace

Result<std::unique_ptr<Runtime>> Runtime::open(const std::string& path,
                                               const RuntimeOptions& options) {
  std::unique_ptr<Runtime> r(new Runtime());
  TRY(r->source_,
      options.random_weights ? ModelSource::open_random(path) : ModelSource::open(path));
  if (options.loading) r->source_.watch(options.loading);
  const bool on_device = options.device == DeviceKind::cuda;
  if (on_device && options.tokens_per_block != kCudaPage)
    return Error{
        Code::unsupported,
        fmt::format("blocks of {} tokens on a GPU; there they have {}: leave --block-size out",
                    options.tokens_per_block, kCudaPage)};
  const std::uint32_t cores = std::max(1u, std::thread::hardware_concurrency());
  r->pool_ = std::make_unique<ThreadPool>(options.threads ? options.threads : cores);

  // The vocabulary is read while the weights are packed: both take a noticeable part of starting
  // up.
  Result<TextParts> text = Error{Code::unavailable, "not read"};
  std::thread reader([&] { text = read_text_parts(r->source_); });
  Result<std::unique_ptr<Model>> model =
      Model::load(r->source_, *r->pool_,
                  {.device = options.device,
                   .isa = options.isa,
                   .activations = options.activations,
                   .rows_max = options.rows_max ? options.rows_max
                               : on_device      ? 8192u
                                                : 512u,
                   .fast = options.fast,
                   .weights = options.weights});
  reader.join();
  if (!model.ok()) return model.error();
  if (!text.ok()) return text.error();
  r->model_ = std::move(model.value());
  r->tokenizer_ = std::make_unique<Tokenizer>(std::move(text.value().tokenizer));
  r->template_ = std::move(text.value().chat_template);
  r->vector_ = &vector_kernels(options.isa);
  r->sampler_ = std::make_unique<Sampler>(*r->vector_, r->config().vocabulary);
  r->context_ = options.context ? options.context : r->config().context;

  r->tokens_per_block_ = options.tokens_per_block;
  r->calibrations_ = options.calibrations;
  r->kv_format_ = options.kv_format;
  if (on_device && r->kv_format_ == "auto") r->kv_format_ = "bf16";
  if (r->kv_format_ == "auto") {
    TRY(const TensorView q, r->source_.tensor("blk.0.attn_q.weight"));
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
  if (options.kv_select)
    TRY_STATUS(r->check_select(*options.kv_select, nullptr, r->retain_ != nullptr));
  if (options.kv_select && options.kv_select->answers()) r->select_ = options.kv_select;
  const Geometry geometry = r->geometry(&*r->storage_);
  const std::uint64_t budget = r->kv_cache_bytes_ =
      options.kv_cache_bytes
          ? options.kv_cache_bytes
          : (on_device ? device_memory_left(*r->model_) : available_memory()) / 10 * 8;
  if (on_device && budget > device_memory_left(*r->model_))
    return Error{Code::exhausted,
                 fmt::format("--kv-cache-memory of {:.1f} GiB: after the weights {:.1f} GiB are "
                             "free on the GPU; leave it out to take 80 % of that",
                             static_cast<double>(budget) / 0x1p30,
                             static_cast<double>(device_memory_left(*r->model_)) / 0x1p30)};
  TRY(std::unique_ptr<Memory> memory,
      on_device ? reserve_on_device(*r->model_, budget) : reserve_to_grow(budget));
  r->cache_ = std::make_unique<KvCache>(CacheOptions{.budget_bytes = budget,
                                                     .tokens_per_block = options.tokens_per_block,
                                                     .evictor = options.evictor,
                                                     .secret = r->secret_},
                                        std::move(memory), r->clock_);
  r->identity_ = {.weights = file_identity(path),
                  .adapter = {},
                  .layout = layout_digest(geometry),
                  .position_scheme = "rope",
                  .tokens_per_block = options.tokens_per_block,
                  .numerics = std::to_string(r->model_->numerics_id()),
                  .tenant = {}};
  TRY(r->root_, r->cache_->root(r->identity_, geometry));
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
  if (model_->device()) return model_->device()->check_storage(storage, wanted);
  return {};
}

Status Runtime::check_retain(const RetainPolicy& policy, const StoragePolicy* storage,
                             std::uint32_t choices, std::uint32_t beams) const {
  const Geometry stored = geometry(storage);
  return quire::check_retain(policy, {.geometry = &stored,
                                      .choices = choices,
                                      .beams = beams,
                                      .device = model_->device() != nullptr,
                                      .context = context_});
}

Status Runtime::check_select(const SelectPolicy& policy, const StoragePolicy* storage, bool retains,
                             std::uint32_t beams) const {
  const Geometry stored = geometry(storage);
  return quire::check_select(policy, {.geometry = &stored,
                                      .retains = retains,
                                      .beams = beams,
                                      .device = model_->device() != nullptr});
}

Geometry Runtime::geometry(const StoragePolicy* storage) const {
  Geometry made = model_->geometry(tokens_per_block_, storage ? *storage : *storage_);
  // Those that are not calibrated are refused by check_storage.
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
  std::byte *there = arena_at(cache_->arena(), to), *here = arena_at(cache_->arena(), from);
  if (const DeviceModel* device = model_->device())
    CHECK(device->device().api->copy_on_device(there, here, bytes, device->stream()) == 0);
  else
    std::memcpy(there, here, bytes);
}

Result<std::span<float>> Runtime::step(std::span<const StepItem> items) {
  TRY(const std::size_t rows, run(items, false));
  return std::span<float>(logits_.at.get(), rows * config().vocabulary);
}

Result<std::span<const BestToken>> Runtime::step_greedy(std::span<const StepItem> items) {
  TRY(const std::size_t rows, run(items, true));
  return std::span<const BestToken>(greedy_.data(), rows);
}

Result<Runtime::DrawnRows> Runtime::step_drawn(std::span<const StepItem> items,
                                               const Draws& draws) {
  TRY(const std::size_t rows, run(items, false, &draws));
  return DrawnRows{{drawn_.data(), rows}, {logits_.at.get(), rows * config().vocabulary}};
}

Result<std::size_t> Runtime::run(std::span<const StepItem> items, bool greedy, const Draws* draws) {
  for (const StepItem& item : items)
    if (item.retain) TRY_STATUS(item.retain->act(*this, *item.sequence));
  needs_.clear();
  geometries_.clear();
  std::size_t rows = 0, wanted = 0;
  for (const StepItem& item : items) {
    needs_.push_back({item.sequence, static_cast<std::uint32_t>(item.tokens.size())});
    rows += item.tokens.size();
    wanted += logit_count(item);
    const Geometry* g = &cache_->geometry(item.sequence->root());
    if (std::ranges::find(geometries_, g) == geometries_.end()) geometries_.push_back(g);
  }
  if (rows > model_->options().rows_max)
    return Error{Code::invalid, "a step of " + std::to_string(rows) + " rows does not fit " +
                                    std::to_string(model_->options().rows_max) +
                                    "; raise --batch-rows"};
  TRY_STATUS(check_parts(items));
  TRY(Reservation room, cache_->reserve(needs_));
  const std::size_t vocabulary = config().vocabulary;
  if (greedy && greedy_.size() < wanted) greedy_.resize(wanted);
  if (greedy && model_->device()) {  // logits stay there
    if (pass_greedy_.size() < wanted) pass_greedy_.resize(wanted);
    for (const Geometry* g : geometries_) {
      TRY_STATUS(forward(room, items, *g, nullptr, pass_greedy_.data()));
      const BestToken* from = pass_greedy_.data();
      BestToken* to = greedy_.data();
      for (const StepItem& item : items) {
        const std::size_t count = logit_count(item);
        if (&cache_->geometry(item.sequence->root()) == g) {
          std::copy_n(from, count, to);
          from += count;
        }
        to += count;
      }
    }
    const BestToken* best = greedy_.data();
    for (const StepItem& item : items)
      for (std::size_t i = 0; i < logit_count(item); ++i, ++best)
        if (!std::isfinite(best->logprob)) item.sequence->mark_faulted();
    for (std::size_t i = 0; i < items.size(); ++i) room.commit(i, items[i].tokens);
    return wanted;
  }
  float* const logits = logits_.cover(wanted * vocabulary);
  if (draws) drawn_.assign(wanted, {});
  if (geometries_.size() == 1) {
    TRY_STATUS(forward(room, items, *geometries_[0], logits, nullptr, draws));
  } else {
    float* const pass = pass_logits_.cover(wanted * vocabulary);
    for (const Geometry* g : geometries_) {
      TRY_STATUS(forward(room, items, *g, pass, nullptr));
      const float* from = pass;
      float* to = logits;
      for (const StepItem& item : items) {
        const std::size_t count = logit_count(item) * vocabulary;
        if (&cache_->geometry(item.sequence->root()) == g) {
          std::copy_n(from, count, to);
          from += count;
        }
        to += count;
      }
    }
  }
  if (greedy) find_best(logits, wanted);

  // A hidden state that is not finite makes every logit of its row NaN. Seen before anything is
  // published.
  const float* row = logits;
  std::size_t of = 0;
  for (const StepItem& item : items)
    for (std::size_t i = 0; i < logit_count(item); ++i, ++of, row += config().vocabulary)
      if (draws && drawn_[of].mode != DrawMode::logits ? !drawn_[of].finite : !std::isfinite(*row))
        item.sequence->mark_faulted();
  for (std::size_t i = 0; i < items.size(); ++i) {
    room.commit(i, items[i].tokens);
    if (items[i].retain) items[i].retain->observer().after_step(*this, *items[i].sequence);
  }
  return wanted;
}

void Runtime::find_best(const float* logits, std::size_t rows) {
  const std::size_t vocabulary = config().vocabulary;
  const auto find = [&](std::size_t i) {
    const std::span<const float> of(logits + i * vocabulary, vocabulary);
    const TokenId best = vector_->argmax(of.data(), config().vocabulary);
    greedy_[i] = {best, static_cast<float>(of[best] - sampler_->log_sum_exp(of, of[best]))};
  };
  if (rows == 1) return find(0);
  pool_->run([&](ThreadPool::Lane lane) {
    for (std::size_t i = lane.index; i < rows; i += lane.count) find(i);
  });
}

// Layers that share pages: what the first of them reads of a block is there once the last has
// computed it.
Status Runtime::forward_by_block(const Reservation& room, std::span<const StepItem> items,
                                 const Geometry& geometry, float* logits) {
  const std::uint32_t tokens = geometry.tokens_per_block;
  const std::size_t vocabulary = config().vocabulary;
  std::vector<float> some;
  passed_.assign(items.size(), 0);
  for (;;) {
    std::size_t rows = 0, wanted = 0;
    parts_.assign(items.begin(), items.end());
    for (std::size_t i = 0; i < items.size(); ++i) {
      StepItem& part = parts_[i];
      const std::size_t left = &cache_->geometry(part.sequence->root()) == &geometry
                                   ? part.tokens.size() - passed_[i]
                                   : 0;
      const std::size_t count =
          std::min<std::size_t>(left, tokens - (room.past(i) + passed_[i]) % tokens);
      part.tokens = part.tokens.subspan(passed_[i], count);
      if (count < left && part.logits == Logits::last) part.logits = Logits::none;
      if (count == 0) part.logits = Logits::none;
      rows += count;
      wanted += logit_count(part);
    }
    if (rows == 0) break;
    some.resize(wanted * vocabulary);
    const Status done = forward(room, parts_, geometry, some.data(), nullptr);
    if (!done.ok()) {
      passed_.clear();
      return done;
    }
    const float* from = some.data();
    float* to = logits;
    for (std::size_t i = 0; i < items.size(); ++i) {
      const std::size_t count = logit_count(parts_[i]) * vocabulary;
      const std::size_t before = items[i].logits == Logits::all ? passed_[i] : 0;
      std::copy_n(from, count, to + before * vocabulary);
      from += count;
      if (&cache_->geometry(items[i].sequence->root()) == &geometry)
        to += logit_count(items[i]) * vocabulary;
      passed_[i] += static_cast<std::uint32_t>(parts_[i].tokens.size());
    }
  }
  passed_.clear();
  return {};
}

Status Runtime::forward(const Reservation& room, std::span<const StepItem> items,
                        const Geometry& geometry, float* logits, BestToken* greedy,
                        const Draws* draws, const Queue* queue) {
  if (geometry.by_block() && passed_.empty())
    return forward_by_block(room, items, geometry, logits);
  tokens_.clear();
  positions_.clear();
  logit_rows_.clear();
  taps_.clear();
  page_reads_.clear();
  reads_.clear();
  bool tapped = false;
  const std::size_t group_count = geometry.groups.size();
  if (sequence_views_.size() < group_count) sequence_views_.resize(group_count);
  views_.resize(group_count);
  for (auto& views : sequence_views_) views.clear();
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (items[i].tokens.empty()) continue;
    if (&cache_->geometry(items[i].sequence->root()) != &geometry) continue;
    const auto first_row = static_cast<std::uint32_t>(tokens_.size());
    const std::uint32_t begin = room.past(i) + (passed_.empty() ? 0 : passed_[i]),
                        end = begin + static_cast<std::uint32_t>(items[i].tokens.size());
    Retaining* const retain = items[i].retain;
    const std::uint32_t first_position =
        begin - (retain ? retain->position_shift() : items[i].position_shift);
    Tap* const tap = !retain ? items[i].tap : retain->observer().before_step(begin, end - begin);
    tapped |= tap != nullptr;
    const std::uint32_t prompt = items[i].sequence->prompt_length();
    for (std::uint32_t at = begin, stop; at < end; at = stop) {
      stop = part_end(items[i], geometry, at, end);
      taps_.push_back(tap);
      reads_.push_back(nullptr);
      if (items[i].select && at >= items[i].select->prompt_length())
        reads_.back() = &page_reads_.emplace_back(items[i].select->reads());
      else if (geometry.sparse() && at < prompt)
        reads_.back() = &page_reads_.emplace_back();
      if (reads_.back() && items[i].chosen) page_reads_.back().chosen = &(*items[i].chosen)[at];
      for (std::uint32_t g = 0; g < group_count; ++g) {
        KvSequenceView view = room.view(i, g, first_row + at - begin);
        view.past = at;
        view.row_count = stop - at;
        sequence_views_[g].push_back(view);
      }
    }
    for (const TokenId token : items[i].tokens) {
      positions_.push_back(first_position + static_cast<std::uint32_t>(tokens_.size()) - first_row);
      if (items[i].logits == Logits::all)
        logit_rows_.push_back(static_cast<std::uint32_t>(tokens_.size()));
      tokens_.push_back(queue && !queue->from.empty() ? kBestOfRow | queue->from[i] : token);
    }
    if (items[i].logits == Logits::last)
      logit_rows_.push_back(static_cast<std::uint32_t>(tokens_.size()) - 1);
  }
  for (std::size_t g = 0; g < group_count; ++g)
    views_[g] = {.arena = cache_->arena(),
                 .sequences = sequence_views_[g].data(),
                 .sequence_count = static_cast<std::uint32_t>(sequence_views_[g].size()),
                 .tokens_per_block = geometry.tokens_per_block,
                 .window = geometry.groups[g].window};
  const Nanoseconds started = clock_.now();
  TRY_STATUS(
      model_->forward(geometry,
                      {.tokens = tokens_,
                       .positions = positions_,
                       .groups = views_,
                       .logit_rows = logit_rows_,
                       .greedy = greedy,
                       .ticket = queue ? queue->ticket : nullptr,
                       .draws = draws,
                       .drawn = draws ? drawn_.data() : nullptr,
                       .taps = tapped ? std::span<Tap* const>(taps_) : std::span<Tap* const>(),
                       .reads = page_reads_.empty() ? std::span<const PageReads* const>()
                                                    : std::span<const PageReads* const>(reads_)},
                      logits));
  forward_time_ += clock_.now() - started;
  return {};
}

}  // namespace quire
