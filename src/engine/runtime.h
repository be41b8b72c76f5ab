// engine/runtime.h - a model, its text and its cache, opened together.
//
// Nothing is computed here: engine/stepper.h runs steps, engine/engine.h answers requests.
//
//   TRY(auto runtime, Runtime::open("model.gguf", {}));
//   TRY(Sequence s, runtime->open_sequence(4096));
//   runtime->cache().attach(s, prompt);
//   Stepper stepper(*runtime);
//   TRY(std::span<float> logits, stepper.read(s));             // of the last token
//
// One thread at a time, except for functions that are marked as for all threads.
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
#include "kv/memory.h"
#include "kv/retain/policy.h"
#include "kv/select/policy.h"
#include "kv/tier/secret.h"
#include "kv/tier/tier_link.h"
#include "model/executor.h"
#include "model/model.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace quire {

struct RuntimeOptions {
  DeviceKind device = DeviceKind::cpu;
  bool random_weights = false;  // the path is a config.json; numbers are made up
  bool fast = false;            // model/model.h
  WeightStorage weights = WeightStorage::automatic;  // model/model.h
  std::uint32_t threads = 0;                         // 0: one per core
  Isa isa = best_isa();
  Activations activations = Activations::int8;
  std::string kv_format = "auto";  // f16, or f32 for models in F32; bf16 on a GPU
  // Of lossy formats (kernels/storage.h): tokens and layers that stay as they were written.
  std::uint32_t kv_recent_exact = 0, kv_sinks = 0;
  std::vector<std::uint32_t> kv_skip_layers = {};
  std::vector<const Format*> kv_plan = {};     // by layer: what the format "planned" means
  std::vector<Calibration> calibrations = {};  // of this model (format/calibration.h)
  std::uint32_t kv_window = 0;                 // of layers without a window of their own; 0: none
  // Requests may ask for others, except that what prompts select is the same for all.
  std::shared_ptr<const RetainPolicy> kv_retain = {};
  std::shared_ptr<const SelectPolicy> kv_select = {};
  std::uint32_t tokens_per_block = 32;
  std::uint64_t kv_cache_bytes = 0;  // 0: 80 % of the memory that is free after loading; the cache
                                     // may be resized to four times as much
  std::uint32_t context = 0;         // 0: the model's own
  std::uint32_t rows_max = 0;        // rows of one step; 0: 512, on a GPU 8,192
  std::string evictor = "odds";
  double pin_budget = 0.5;          // share of the cache that pinned prefixes may hold
  double tenant_pin_share = 1;      // of that, what one tenant may
  std::string kv_dir = {};          // blocks are kept in this folder, too; none: nowhere
  bool kv_dir_needed = true;        // false: if it cannot be used, `log` says why
  std::uint64_t kv_disk_bytes = 0;  // it is never larger; 0: 1 GiB
  TierWrite kv_disk_write = TierWrite::automatic;
  // KvPolicy::resident of requests that say nothing and are larger than the cache; 0: they are refused.
  std::uint64_t kv_resident_bytes = 0;
  std::string kv_store = {};        // URL of a store that machines share (kv/tier/store_url.h)
  std::string kv_secret_file = {};  // the secret of keys and records; none: the folder's
  std::function<void(const std::string&)> log = {};  // lines about folder and store, any thread
  ModelSource::Progress loading = {};  // called with the bytes of weights that are loaded
};

// Where sessions are saved, and the secret that tells our own files.
struct SessionFolder {
  std::string path;
  DeploymentSecret secret;
  std::uint64_t bytes_max = 0;  // of all files together
};

// What a runtime is made of. Runtime::open loads them from files; the simulator brings its own.
struct RuntimeParts {
  std::shared_ptr<const ModelSource> source;
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<Executor> executor;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::optional<ChatTemplate> chat_template = {};
  Digest weights = {};                   // identifies the model in keys of blocks
  std::unique_ptr<Memory> memory = {};   // none: reserved where the executor computes
  const Clock* clock = nullptr;          // none: the machine's
  CacheOptions cache = {};               // budgets, block size and evictor are RuntimeOptions'
  std::unique_ptr<TierLink> tiers = {};  // what lies below memory; its secret is the cache's
  std::optional<SessionFolder> sessions = {};
};

class Runtime {
 public:
  static Result<std::unique_ptr<Runtime>> open(const std::string& path,
                                               const RuntimeOptions& options);
  static Result<std::unique_ptr<Runtime>> assemble(RuntimeParts parts,
                                                   const RuntimeOptions& options);

  Executor& executor() const { return *executor_; }
  KvCache& cache() { return *cache_; }
  const KvCache& cache() const { return *cache_; }
  const ModelConfig& config() const { return executor_->config(); }
  const ModelSource& source() const { return *source_; }
  const Geometry& geometry() const { return geometry_; }  // for all threads
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const ChatTemplate* chat_template() const { return template_ ? &*template_ : nullptr; }
  Sampler& sampler() { return *sampler_; }
  std::uint32_t context() const { return context_; }
  std::uint32_t threads() const { return pool_->size(); }
  ThreadPool& pool() { return *pool_; }
  const VectorKernels& vector() const { return *vector_; }
  Isa isa() const { return isa_; }
  const std::string& kv_format() const { return kv_format_; }  // with what stays exact
  const StoragePolicy& storage() const { return *storage_; }   // unless a request says otherwise
  const StoragePolicy* plan() const { return plan_ ? &*plan_ : nullptr; }  // "planned"
  // Of requests that say nothing else. select() is about answers; storage() says what prompts select.
  const std::shared_ptr<const RetainPolicy>& retain() const { return retain_; }
  const std::shared_ptr<const SelectPolicy>& select() const { return select_; }
  std::uint64_t kv_cache_bytes() const { return kv_cache_bytes_; }  // the budget it was opened with
  std::uint64_t kv_resident_bytes() const { return kv_resident_bytes_; }  // RuntimeOptions
  std::size_t memory_page() const { return memory_page_; }  // that its memory comes in, in bytes
  const Clock& clock() const { return *clock_; }            // of the cache and of steps
  TierLink* tiers() { return tiers_.get(); }                // null: there are none
  const std::string& kv_dir() const { return kv_dir_; }     // the folder in use; empty: none
  const TierLink* tiers() const { return tiers_.get(); }
  // None: sessions cannot be saved. The digest of weights is that of their content if there is one.
  const std::optional<SessionFolder>& sessions() const { return sessions_; }

  // Bytes from one block of the cache to another, wherever they lie.
  void copy_block(ArenaOffset to, ArenaOffset from, std::size_t bytes);

  // The root of a tenant's blocks under a storage policy (null: the server's). Tenants never share
  // blocks, and neither do storage policies. tenant_key() and check_storage() are for all threads.
  Result<RootId> tenant_root(std::string_view tenant, const StoragePolicy* storage = nullptr);
  // Finds a root without making one.
  std::optional<RootId> find_root(std::string_view tenant,
                                  const StoragePolicy* storage = nullptr) const;
  BlockKey tenant_key(std::string_view tenant, const StoragePolicy* storage = nullptr) const;
  RootIdentity identity(std::string_view tenant, const StoragePolicy* storage) const;  // of roots
  Status check_storage(const StoragePolicy& storage) const;
  // Whether a sequence that is stored in this way can be compacted.
  Status check_retain(const RetainPolicy& policy, const StoragePolicy* storage = nullptr,
                      std::uint32_t choices = 1, std::uint32_t beams = 0) const;
  // Whether a sequence that is stored in this way can choose the pages it reads.
  Status check_select(const SelectPolicy& policy, const StoragePolicy* storage = nullptr,
                      const RetainPolicy* retain = nullptr, std::uint32_t beams = 0) const;
  Geometry geometry(const StoragePolicy* storage) const;
  const KeySecret& secret() const { return secret_; }

  Result<Sequence> open_sequence(std::uint32_t token_capacity);  // to be attached to a prompt
  Result<Sequence> empty_sequence(
      std::uint32_t token_capacity);  // fed token by token, without looking for cached ones

 private:
  Runtime() = default;

  std::shared_ptr<const ModelSource> source_;
  SteadyClock steady_;
  const Clock* clock_ = &steady_;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<KvCache> cache_;
  std::optional<SessionFolder> sessions_;
  std::unique_ptr<TierLink> tiers_;  // ends first: it may hold memory of the cache
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::optional<ChatTemplate> template_;
  std::string kv_format_;
  std::optional<StoragePolicy> storage_, plan_;
  std::shared_ptr<const RetainPolicy> retain_;
  std::shared_ptr<const SelectPolicy> select_;
  std::vector<Calibration> calibrations_;  // never grows: geometries point to them
  std::uint64_t kv_cache_bytes_ = 0, kv_resident_bytes_ = 0;
  std::size_t memory_page_ = kMemoryPage;
  std::unique_ptr<Sampler> sampler_;
  const VectorKernels* vector_ = nullptr;
  Isa isa_ = best_isa();
  KeySecret secret_ = KeySecret::random();
  RootIdentity identity_;  // of the tenant without a name
  RootId root_{};
  RootHold root_hold_;
  Geometry geometry_;  // of that root
  std::uint32_t context_ = 0, tokens_per_block_ = 32;
  std::string kv_dir_;
};

}  // namespace quire
