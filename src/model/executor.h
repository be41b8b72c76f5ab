// model/executor.h - computes steps. An executor knows no request, no prefix index and no socket.
//
// The engine plans a step, reserves room for it in the cache, submits it, completes it, and commits
// as many tokens as it accepts (engine/stepper.h). Executors: CpuExecutor, CudaExecutor, and
// ToyExecutor of the simulator.
//
//   TRY(StepTicket ticket, executor.submit(plan));         // queued; nothing is waited for
//   TRY(StepResult result, executor.complete(ticket));     // in the order of submission
//
// Same answer: a row's result depends on its token, its position and what its sequence holds, never
// on the other rows of the step.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>

#include "base/clock.h"
#include "base/result.h"
#include "base/token.h"
#include "kernels/draw.h"
#include "kernels/encoded.h"
#include "kernels/geometry.h"
#include "kernels/kv_view.h"
#include "kernels/storage.h"
#include "model/cold_blocks.h"
#include "model/config.h"
#include "model/page_reads.h"
#include "model/tap.h"

namespace quire {

enum class DeviceKind : std::uint8_t { cpu, cuda };

// What an executor can do. A request that asks for more is refused when it is prepared.
struct ExecutorTraits {
  DeviceKind device = DeviceKind::cpu;
  std::uint64_t numerics = 0;    // equal ids, weights and tokens give equal bits
  std::uint32_t rows_max = 512;  // of one step
  std::uint32_t in_flight = 1;   // steps that may be submitted and not completed
  bool ahead = false;            // submitting a step behind an unfinished one saves time
  bool draws = false;            // tokens are drawn where the logits are
  bool page_work = false;        // taps, compacted sequences, chosen pages and PageWork
  bool gates = false;            // waits for layers, and says when layers are sealed
  // Blocks that are not in the arena are brought in windows of multiples of so many tokens. 0: it does
  // not read such blocks.
  std::uint32_t cold_tokens = 0;
};

// What is wanted of the rows that StepPlan::wanted lists.
enum class StepWant : std::uint8_t {
  logits,  // [wanted][vocabulary]
  best,    // the most likely token of each
  drawn,   // as StepPlan::draws says, row by row; rows that want their logits get them
};

// Keys and values of a sequence that are still arriving from a tier or a peer. The engine thread or
// an I/O thread raises `layers`; the executor reads layer l once l < layers. A sequence that is
// dropped may still be read until its step is completed; its results are void.
struct LayerGate {
  std::atomic<std::uint32_t> layers{0};
  Nanoseconds deadline = 0;  // on the steady clock: the sequence is dropped from the step then
};

// One step: rows of all sequences one after the other. `groups` has one view per layer group of the
// geometry; their sequences lie in the same order and cover the same rows. Everything that a plan
// points to must not change until the step is completed, except that an entry of a block table may
// change to a block with equal contents. The block that it named before must stay, too.
struct StepPlan {
  const Geometry* geometry = nullptr;
  std::uint64_t serial = 0;  // of the geometry: another one may come to lie at its address
  // kBestOfRow | r: the best token of wanted row r of the step before.
  std::span<const TokenId> tokens;
  std::span<const std::uint32_t> positions;
  std::span<const KvView> groups;
  std::span<const std::uint32_t> wanted;  // rows whose result is wanted, ascending
  StepWant want = StepWant::logits;
  bool logprobs = true;  // StepWant::best: BestToken::logprob is wanted, else it may be 0
  Draws draws = {};      // for StepWant::drawn: one for each wanted row
  std::uint32_t last_layer = 0xffffffffu;  // keys and values up to this layer, and nothing else
  std::span<Tap* const> taps = {};         // by sequence, null where nobody asks; or empty
  std::span<const PageReads* const> reads = {};  // by sequence, null: reads everything; or empty
  // By sequence, null: everything is there; or empty.
  std::span<LayerGate* const> gates = {};
  // The plan has one sequence, and these blocks of it are brought while the step runs. Their entries
  // in its table are kNoBlock. If one cannot be brought the sequence is dropped. Null: there are none.
  ColdBlocks* cold = nullptr;
  // Called on a compute thread when the blocks that a step fills are encoded in one more layer.
  const std::function<void(std::uint32_t layer)>* sealed = nullptr;
};

// Valid until the next step is completed. Only what was wanted is there, in the order of `wanted`.
struct StepResult {
  std::span<float> logits;
  std::span<const BestToken> best;
  std::span<const Drawn> drawn;
  // By sequence of the plan: its gate passed the deadline, or a cold block could not be brought. Its
  // rows are void. Empty: none.
  std::span<const std::uint8_t> dropped = {};
  // By sequence of the plan: a key or a value of its rows is not finite, or too large for the format's
  // rows. They must not be kept. Empty: none.
  std::span<const std::uint8_t> broken = {};
};

enum class StepTicket : std::uint32_t {};

// What sealing lost, as sums of squares. Only one page of each step is looked at.
struct SealError {
  struct Side {
    double error = 0, power = 0;
    double relative() const { return power > 0 ? error / power : 0; }
  } keys, values;
  std::uint64_t pages = 0;
};

// Work on the pages of sequences between steps, for retention, blending and conversion.
class PageWork {
 public:
  virtual ~PageWork() = default;
  // Adds the attention that slots of a sequence received from the queries of its tap to out[layer
  // of the tap * query_heads + query head][slot]. On all threads.
  virtual void add_mass(const Geometry& geometry, const TapSequence& sequence, const Tap& tap,
                        const MassAsk& ask, std::span<float* const> out) = 0;
  // Rotates the keys of heads by `delta` more positions, which may be negative: [rows][key_dim].
  virtual void rotate_keys(std::uint32_t layer, std::int32_t delta, std::uint32_t rows,
                           float* keys) = 0;
  // Radians per position of the pairs (i, i + n) of a layer's heads.
  virtual std::span<const double> rotation(std::uint32_t layer) const = 0;
  // How one side of a lane's page is encoded and read. The page's first token is at `position`.
  virtual EncodedPart sealed_part(const Geometry& geometry, std::uint32_t layer,
                                  std::uint32_t kv_head, Side side,
                                  std::uint32_t position) const = 0;
  virtual RopeView rope(std::uint32_t layer) const = 0;  // as far as steps have got
};

struct WeightsInfo {
  std::uint64_t bytes = 0;  // in memory
  bool packed = false;      // on a GPU: not all are bf16
};

class Executor {
 public:
  virtual ~Executor() = default;

  virtual const ExecutorTraits& traits() const = 0;
  virtual const ModelConfig& config() const = 0;
  // The cache geometry of this model under a storage policy.
  virtual Geometry geometry(std::uint32_t tokens_per_block, const StoragePolicy& policy) const = 0;
  // Whether this executor can store keys and values under a storage policy.
  virtual Status check_storage(const StoragePolicy& storage, const Geometry& geometry) const = 0;

  virtual Result<StepTicket> submit(const StepPlan& plan) = 0;
  virtual Result<StepResult> complete(StepTicket ticket) = 0;

  virtual void copy_block(std::byte* to, const std::byte* from, std::size_t bytes) = 0;
  virtual PageWork* page_work() = 0;  // null where traits().page_work is false
  virtual SealError seal_error() const = 0;
  virtual WeightsInfo weights() const = 0;
};

}  // namespace quire
