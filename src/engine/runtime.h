// engine/runtime.h - a model, its text and its cache, opened together: what `run`, `chat`, `bench`,
// the C API and the server stand on.
//
//   TRY(auto runtime, Runtime::open("model.gguf", {}));
//   TRY(Sequence s, runtime->open_sequence(4096));
//   runtime->cache().attach(s, prompt);
//   TRY(std::span<float> logits, runtime->read(s));                    // of the last token
//   TRY(logits, runtime->step({{{&s, {&next, 1}, Logits::last}}}));
//
// One thread at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/thread_pool.h"
#include "base/token.h"
#include "engine/sampler.h"
#include "kv/cache.h"
#include "kv/retain/policy.h"
#include "kv/select/policy.h"
#include "model/model.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace quire {

class Retaining;
class Selecting;

struct RuntimeOptions {
  DeviceKind device = DeviceKind::cpu;
  bool random_weights = false;  // the path is a config.json; numbers are made up
  bool fast = false;            // model/model.h
  WeightStorage weights = WeightStorage::automatic;  // likewise
  std::uint32_t threads = 0;                         // 0: one per core
  Isa isa = best_isa();
  Activations activations = Activations::int8;
  std::string kv_format = "auto";  // f16, or f32 for models in F32; bf16 on a GPU
  // Of lossy formats (kernels/storage.h): tokens and layers that stay as they were written.
  std::uint32_t kv_recent_exact = 0, kv_sinks = 0;
  std::vector<std::uint32_t> kv_skip_layers = {};
  std::vector<const Format*> kv_plan = {};     // by layer: what the format "planned" means
  std::vector<Calibration> calibrations = {};  // of this model (engine/calibrate.h)
  std::uint32_t kv_window = 0;                 // tokens that layers see which see all; 0: all
  std::shared_ptr<const RetainPolicy> kv_retain = {};  // unless a request says otherwise
  std::shared_ptr<const SelectPolicy> kv_select = {};  // likewise; of prompts: for all
  std::uint32_t tokens_per_block = 32;
  std::uint64_t kv_cache_bytes = 0;  // 0: 80 % of the memory that is free after loading; the cache
                                     // may be resized to four times as much
  std::uint32_t context = 0;         // 0: the model's own
  std::uint32_t rows_max = 0;        // rows of one step; 0: 512, on a GPU 8,192
  std::string evictor = "cost";
  ModelSource::Progress loading = {};  // told how many bytes of the weights are loaded
};

// By first token of what chose together (a token, or a block of a prompt), by lane.
using ChosenPages = std::map<std::uint32_t, std::vector<std::vector<std::uint32_t>>>;

enum class Logits : std::uint8_t { none, last, all };

// One sequence's part of a step: these tokens come after what it holds.
struct StepItem {
  Sequence* sequence;
  std::span<const TokenId> tokens;
  Logits logits = Logits::last;
  Retaining* retain = nullptr;       // decides what stays; brings tap and shift (engine/retain.h)
  Tap* tap = nullptr;                // what is to be written down about it (model/tap.h)
  std::uint32_t position_shift = 0;  // a token's position is its index less this
  Selecting* select = nullptr;       // chooses what answers read (engine/selecting.h)
  ChosenPages* chosen = nullptr;     // for tests: what was chosen
};

class Runtime {
 public:
  static Result<std::unique_ptr<Runtime>> open(const std::string& path,
                                               const RuntimeOptions& options);

  Model& model() { return *model_; }
  const Model& model() const { return *model_; }
  KvCache& cache() { return *cache_; }
  const KvCache& cache() const { return *cache_; }
  const ModelConfig& config() const { return model_->config(); }
  const ModelSource& source() const { return source_; }
  const Geometry& geometry() const { return geometry_; }  // for all threads
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const ChatTemplate* chat_template() const { return template_ ? &*template_ : nullptr; }
  Sampler& sampler() { return *sampler_; }
  std::uint32_t context() const { return context_; }
  std::uint32_t threads() const { return pool_->size(); }
  ThreadPool& pool() { return *pool_; }
  const VectorKernels& vector() const { return *vector_; }
  const std::string& kv_format() const { return kv_format_; }  // with what stays exact
  const StoragePolicy& storage() const { return *storage_; }   // unless a request says otherwise
  const StoragePolicy* plan() const { return plan_ ? &*plan_ : nullptr; }        // "planned"
  const std::shared_ptr<const RetainPolicy>& retain() const { return retain_; }  // likewise
  // Of answers, likewise; what is selected of prompts is in storage().
  const std::shared_ptr<const SelectPolicy>& select() const { return select_; }
  std::uint64_t kv_cache_bytes() const { return kv_cache_bytes_; }  // the budget it was opened with

  // Bytes from one block of the cache to another, wherever they lie.
  void copy_block(ArenaOffset to, ArenaOffset from, std::size_t bytes);

  // Tenants never share, nor do ways of storing (null: the server's): each has a root of its own in
  // the cache. Its key is for all threads, and so is the check.
  Result<RootId> tenant_root(std::string_view tenant, const StoragePolicy* storage = nullptr);
  BlockKey tenant_key(std::string_view tenant, const StoragePolicy* storage = nullptr) const;
  Status check_storage(const StoragePolicy& storage) const;
  // Whether such a sequence can be compacted.
  Status check_retain(const RetainPolicy& policy, const StoragePolicy* storage = nullptr,
                      std::uint32_t choices = 1, std::uint32_t beams = 0) const;
  // Whether such a sequence can choose what it reads.
  Status check_select(const SelectPolicy& policy, const StoragePolicy* storage = nullptr,
                      bool retains = false, std::uint32_t beams = 0) const;
  Geometry geometry(const StoragePolicy* storage) const;
  const KeySecret& secret() const { return secret_; }

  Result<Sequence> open_sequence(std::uint32_t token_capacity);  // to be attached to a prompt
  Result<Sequence> empty_sequence(
      std::uint32_t token_capacity);  // fed token by token, without looking for cached ones

  // Runs rows of all items through the model, in one forward pass unless their sequences are stored
  // in different ways. Returns the wanted logits,
  // [rows][vocabulary], in the order of the items; they stay valid until the next step. Room that
  // is not there is an error and changes nothing. A sequence whose logits are not finite is marked
  // as faulted.
  Result<std::span<float>> step(std::span<const StepItem> items);
  // The same, but only the best token of each wanted row comes back: on a GPU logits stay there.
  Result<std::span<const BestToken>> step_greedy(std::span<const StepItem> items);
  // The same in two halves, for items of one token each that are stored alike: what follows can be
  // got ready while a device computes. `from` is for a step behind another that is not finished:
  // item i reads the best token of that one's item from[i], which items[i].tokens will hold when
  // this one is finished. Two steps may be under way; they are finished in their order.
  struct Pending {
    Reservation room;
    std::uint32_t ticket;  // of a device; elsewhere a step is computed when it is finished
    Nanoseconds submitted;
  };
  Result<Pending> submit(std::span<const StepItem> items, std::span<const std::uint32_t> from = {});
  // The same items; what is to be dropped has no tokens any more. Best tokens by item.
  Result<std::span<const BestToken>> finish(Pending& step, std::span<const StepItem> items);
  // Computes tokens that a sequence holds already once more, in the layers up to `last_layer`, from
  // what is there now: ascending, rows of one step. Their blocks are the sequence's alone, and exact.
  Status compute_again(Sequence& s, std::span<const std::uint32_t> tokens,
                       std::uint32_t last_layer);
  // The same on a GPU, with tokens drawn there as far as `draws` (one for each wanted row) say. Rows
  // that come back as DrawMode::logits have their logits, at their place among all.
  struct DrawnRows {
    std::span<const Drawn> drawn;
    std::span<float> logits;
  };
  Result<DrawnRows> step_drawn(std::span<const StepItem> items, const Draws& draws);
  Nanoseconds forward_time() const { return forward_time_; }  // in the model, over all steps

  // Computes what the sequence knows and does not hold yet, up to `end` tokens, in steps of at most
  // `chunk` rows. `progress` is called between steps and may stop it by returning false
  // (Code::cancelled).
  Status prefill(Sequence& s, std::uint32_t end, std::uint32_t chunk = 0,
                 const std::function<bool(std::uint32_t done)>& progress = {},
                 Retaining* retain = nullptr);
  // Rows that a step of a prompt may have: in a sparse layout, whole blocks.
  std::uint32_t chunk_rows(const Sequence& s, std::uint32_t chunk) const;
  // The same to the end of what it knows, and the logits of its last token.
  Result<std::span<float>> read(Sequence& s, std::uint32_t chunk = 0,
                                const std::function<bool(std::uint32_t done)>& progress = {},
                                Retaining* retain = nullptr);

 private:
  Runtime() = default;
  // Runs all items; leaves the wanted logits in logits_, or, if greedy, the best tokens in greedy_.
  Result<std::size_t> run(std::span<const StepItem> items, bool greedy,
                          const Draws* draws = nullptr);  // rows wanted
  // The items that are stored in this way; what they want goes to `logits`, or to `greedy`.
  struct Queue {  // of a device: the step is not waited for
    std::span<const std::uint32_t> from;
    std::uint32_t* ticket;
  };
  Status forward(const Reservation& room, std::span<const StepItem> items, const Geometry& geometry,
                 float* logits, BestToken* greedy, const Draws* draws = nullptr,
                 const Queue* queue = nullptr);
  void find_best(const float* logits, std::size_t rows);  // into greedy_
  // Whether every item can be cut into such parts.
  Status check_parts(std::span<const StepItem> items) const;
  // Where the part of an item ends that begins at this token: those that choose what they read do so
  // block by block of a prompt, token by token of an answer.
  std::uint32_t part_end(const StepItem& item, const Geometry& geometry, std::uint32_t first,
                         std::uint32_t end) const;
  // The same in as many passes as the longest has blocks.
  Status forward_by_block(const Reservation& room, std::span<const StepItem> items,
                          const Geometry& geometry, float* logits);
  RootIdentity identity(std::string_view tenant, const StoragePolicy* storage) const;

  ModelSource source_;
  SteadyClock clock_;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::optional<ChatTemplate> template_;
  std::string kv_format_;
  std::optional<StoragePolicy> storage_, plan_;
  std::shared_ptr<const RetainPolicy> retain_;
  std::shared_ptr<const SelectPolicy> select_;
  std::vector<Calibration> calibrations_;  // never grows: geometries point to them
  std::uint64_t kv_cache_bytes_ = 0;
  std::unique_ptr<Sampler> sampler_;
  const VectorKernels* vector_ = nullptr;
  KeySecret secret_ = KeySecret::random();
  RootIdentity identity_;  // of the tenant without a name
  RootId root_{};
  Geometry geometry_;  // of that root: the cache's own moves when another root joins
  std::uint32_t context_ = 0, tokens_per_block_ = 32;
  Nanoseconds forward_time_ = 0, finished_ = 0;  // when the last pending step was

  // Of the step at hand; kept so that a step allocates nothing once they have grown.
  std::vector<StepNeed> needs_;
  std::vector<TokenId> tokens_;
  std::vector<std::uint32_t> positions_, logit_rows_;
  std::vector<std::vector<KvSequenceView>> sequence_views_;  // by group
  std::vector<KvView> views_;
  std::vector<Tap*> taps_;
  std::deque<PageReads> page_reads_;  // of those that choose, and by part of an item
  std::vector<const PageReads*> reads_;
  std::vector<const Geometry*> geometries_;
  std::vector<StepItem> parts_;        // what one pass of several takes of the items,
  std::vector<std::uint32_t> passed_;  // and their rows before it; empty where there is one
  // Never filled: rows that nobody asks for are not touched.
  struct Floats {
    std::unique_ptr<float[]> at;
    std::size_t count = 0;
    float* cover(std::size_t wanted) {
      if (count < wanted) at = std::make_unique_for_overwrite<float[]>(count = wanted);
      return at.get();
    }
  };
  Floats logits_, pass_logits_;
  std::vector<BestToken> greedy_, pass_greedy_;
  std::vector<Drawn> drawn_;
};

}  // namespace quire
