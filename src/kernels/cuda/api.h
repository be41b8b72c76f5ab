// kernels/cuda/api.h - the one table through which the program talks to libquire_cuda.so.
//
// Plain C++ without a CUDA header: kernels/cuda/device.h loads the shared object and hands out the
// table; kv/ takes memory from it, model/ runs its device pass with it. Calls return 0 or an error
// number that error_text() explains. Pointers are device addresses unless they say host. Kernels
// are queued on a stream; they start while their predecessor ends (programmatic dependent launch).
//
// Rules that every kernel follows, so that an answer never depends on batch, chunk or history:
//   matrix products   one chain of m16n8k16 over K, f32, from 0, for any number of rows
//   attention         slots in pages of kPage, each page one step of the online softmax; splits of
//                     cuda_split slots start from (-inf, 0, 0) and merge left to right
//
//   const CudaApi* cuda = ...;
//   cuda->linear({.weights = w, .activations = x, .output = y, .rows = 8, ...}, stream);
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/token.h"
#include "kernels/draw.h"

#ifdef __CUDACC__
#define QUIRE_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define QUIRE_HOST_DEVICE inline
#endif

namespace quire {

inline constexpr std::uint32_t kCudaApiVersion = 8;
inline constexpr std::uint32_t kCudaPage = 32;  // tokens per block
// Slots of a split: small heads make short work of them.
QUIRE_HOST_DEVICE constexpr std::uint32_t cuda_split(std::uint32_t head_dim) {
  return head_dim <= 64 ? 256 : 512;
}
inline constexpr std::uint32_t kCudaTile = 128;  // (row, query head) pairs of a prefill item
// Items with so few of them are several times as fast, a split of theirs being one warp's work, if
// they leave partials.
inline constexpr std::uint32_t kCudaFewPairs = 16;
inline constexpr std::uint32_t kNoPartial = 0xffffffffu;

// Up to this many rows, activations lie as the fragments the tensor cores want (cuda/packed.h);
// beyond it they are plain rows.
inline constexpr std::uint32_t kPackedRowsMax = 32;

// Beyond that, buffers of activations and of outputs hold at least this many rows.
inline constexpr std::uint32_t kLibraryRows = 128;

using CudaStream = struct CudaStreamTag*;
using CudaGraph = struct CudaGraphTag*;
using CudaEvent = struct CudaEventTag*;

struct CudaDeviceInfo {
  char name[64];
  int major, minor, multiprocessors, driver;
  int code;  // 90: kernels for Hopper, 80: for any GPU, 0: the library has none that this one runs
  std::uint64_t memory_bytes, free_bytes;
};

// A piece of attention over bf16 pages: some rows of one sequence, all KV heads, over slots [begin, end): from the
// first row's first visible slot, or an edge of a split, to one past the last row's position, or an
// edge. A decode item is one row, and one split of it or all.
struct alignas(16) AttendItem {
  std::uint32_t table;     // the sequence's first block in the tables
  std::uint32_t row;       // first row, in the step
  std::uint32_t position;  // of the first row
  std::uint32_t past;      // slots before it were written by earlier steps
  std::uint32_t begin, end;
  std::uint32_t
      partial;  // where the first row's first split goes, or kNoPartial: all splits are here
  std::uint16_t row_count;
  std::uint16_t partial_stride;  // from one row's partials to the next one's

  QUIRE_HOST_DEVICE constexpr std::uint32_t row_pages() const { return row_count & 255u; }
  QUIRE_HOST_DEVICE constexpr std::uint32_t sealed_rows() const { return row_count >> 8; }
};
static_assert(sizeof(AttendItem) == 32);  // two loads
// Over sealed pages it is sealed_rows() rows of one block, with up to kSealedColumns query heads in
// all, and [begin, end) are the sealed slots they read, or some splits of them. Then come row_pages()
// pages of rows as they were written, a split of their own: sinks, and what is too recent to be
// sealed. They have an item to themselves where rows are cut.
inline constexpr std::uint32_t kSealedColumns = 8;
QUIRE_HOST_DEVICE constexpr std::uint16_t sealed_row_count(std::uint32_t rows,
                                                           std::uint32_t pages) {
  return static_cast<std::uint16_t>(rows << 8 | pages);
}

// How a row's splits come together. `count` 0: nothing to merge.
struct AttendMerge {
  std::uint32_t row, first, count;
};

// How pages are stored. bf16 pages are written row by row; the others are sealed once full
// (kernels/cuda/sealed.h). int4 and int2 are of rows in the Hadamard basis.
enum class CudaKvFormat : std::uint32_t { bf16, fp8, int8, int4, int2 };
QUIRE_HOST_DEVICE constexpr bool cuda_rotates(CudaKvFormat format) {
  return format == CudaKvFormat::int4 || format == CudaKvFormat::int2;
}

// Whether a warp should walk a whole row alone, which needs no merge: it keeps up with memory only
// beside enough others. Compressed pages are more work per byte.
QUIRE_HOST_DEVICE constexpr bool cuda_rows_stay_whole(std::uint64_t rows_and_heads,
                                                      std::uint64_t page_bytes, CudaKvFormat format,
                                                      std::uint64_t multiprocessors) {
  return rows_and_heads * page_bytes >=
         multiprocessors * (format == CudaKvFormat::bf16 ? 31000 : 62000);
}

struct AttendArgs {
  const std::byte* arena;
  const std::uint32_t* tables;  // arena offsets in units of 256 bytes
  const AttendItem* items;
  const std::uint32_t* item_count;  // on the device, so that a captured graph serves any step
  const AttendMerge* merges;        // one per row
  const void* queries;  // bf16 [rows][query_heads * head_dim], rotated, times scale * log2(e)
  void* output;         // bf16 activations, packed for up to kPackedRowsMax rows
  float* partials;
  std::uint32_t rows;  // of the step
  std::uint32_t query_heads, kv_heads, head_dim;
  std::uint32_t window;                    // 0: all
  std::uint32_t items_max;                 // grid of prefill
  std::uint64_t layer_offset, page_bytes;  // within a block; key half first
  // Other formats are decoded row by row; rows that are not sealed lie in bf16 pages elsewhere.
  CudaKvFormat format = CudaKvFormat::bf16;
  const std::uint32_t* row_tables = nullptr;  // as `tables`
  std::uint64_t row_layer_offset = 0, row_page_bytes = 0;
  std::uint32_t recent_blocks = 0, sink_blocks = 0;  // kernels/sealed.h
  bool rotated = false;  // everything is in the Hadamard basis; outputs leave it
};

// Latent attention (kernels/cuda/attend_latent.cu): a page is 32 rows of kLatentKeys bf16, laid out as
// keys are, of which the first kLatentValues are the values. AttendArgs: kv_heads are groups of
// kLatentHeads query heads, head_dim is kLatentValues, queries have kLatentKeys for each head; an item
// is one row's split.
inline constexpr std::uint32_t kLatentKeys = 576, kLatentValues = 512, kLatentHeads = 16;

// Row pages of sealed formats: no more than a warp has lanes.
inline constexpr std::uint32_t kRowPagesMax = 32;

// Which pages a row at this position reads as rows: page i is block `at(i)`.
struct RowPages {
  std::uint32_t sinks, first, count;
  QUIRE_HOST_DEVICE constexpr std::uint32_t at(std::uint32_t i) const {
    return i < sinks ? i : first + i - sinks;
  }
};
QUIRE_HOST_DEVICE constexpr RowPages cuda_row_pages(std::uint32_t position, std::uint32_t window,
                                                    std::uint32_t recent, std::uint32_t sinks) {
  const std::uint32_t own = position / kCudaPage, kept = own - (own < recent ? own : recent);
  const std::uint32_t seen =
      window != 0 && position + 1 > window ? (position + 1 - window) / kCudaPage : 0;
  const std::uint32_t first = kept > seen ? kept : seen;
  const std::uint32_t at_start = window != 0 ? 0 : (sinks < kept ? sinks : kept);
  return {at_start, first, at_start + own - first + 1};
}

enum class LinearOutput : std::uint32_t {
  rows_bf16,  // [rows][outputs]
  rows_f32,
  gated,  // outputs in turns of 8 gates and 8 ups; silu(gate) * up as the next activations
  gated_gelu,
};

// What weights that share 32 codes have in common (kernels/cuda/coded.h).
enum class CodeForm : std::uint32_t {
  affine,     // f16 scale and offset
  symmetric,  // the scale in two bf16 parts; half of the codes are below zero
  wide,       // f32 scale and offset
};
// Weights that lie as codes, or none.
struct WeightCodes {
  const void* data = nullptr;
  std::uint32_t bits = 0;  // 4 or 8
  CodeForm form = CodeForm::affine;
};

struct LinearArgs {
  const void* weights;      // bf16 [outputs][inputs]; with codes, room for that (more rows need it)
  const void* activations;  // bf16
  void* output;
  std::uint32_t rows, outputs, inputs;
  LinearOutput kind;
  bool fast = false;  // any order of sums will do, though it depend on the number of rows
  WeightCodes codes = {};
};

// x += norm?(y); activations = rms_norm(x) * weight.
struct AddNormArgs {
  float* x;                // [rows][width]
  const void* y;           // bf16 [rows][width], or null
  const float* post_norm;  // weights of a norm of y before it is added, or null
  const float* weight;
  void* output;  // bf16 activations
  std::uint32_t rows, width;
  float epsilon;
};

// The largest logit of a row, the first of those, and the sum of exp(x - max) in the order of
// kernels/vector.h; NaN where the row is.
struct CudaBest {
  TokenId token;
  float max, sum;
};

struct EmbedArgs {
  const void* table;            // bf16 [vocabulary][width]
  const std::uint32_t* tokens;  // or rows, with kBestOfRow
  const CudaBest* best;
  float* x;
  std::uint32_t rows, width;
  float scale;
  WeightCodes codes = {};  // instead of the table
};

// Splits [query heads | key heads | value heads], rotates, writes keys and values to their pages.
struct RopeStoreArgs {
  const void* qkv;               // bf16 [rows][(query_heads + 2 kv_heads) * head_dim]
  const float* bias;             // or null
  const float *q_norm, *k_norm;  // or null
  const float* angles;  // [positions][head_dim]: cosines, then sines, of head_dim / 2 pairs
  const std::uint32_t* positions;
  const std::uint32_t* places;  // per row: arena offset of its block, or 0xffffffff for none
  void* queries;
  std::byte* arena;
  std::uint32_t rows, query_heads, kv_heads, head_dim;
  std::uint32_t norm_dim;  // what norms are over: the rest of a head is padding, and zero
  float query_scale, epsilon;
  std::uint64_t layer_offset, page_bytes;
  bool rotate = false;  // queries, keys and values into the Hadamard basis
  // Set to 1 for rows with a key or a value that is not finite; pinned, or null.
  std::uint32_t* broken = nullptr;
};

struct GateArgs {
  const void* gate_up;  // bf16 [rows][2 * width] in turns of 8 and 8
  void* output;         // bf16 [rows][width]
  std::uint32_t rows, width;
  bool gelu;
};

// Some rows of the residual stream and of attention's output, for what only they go through.
struct GatherArgs {
  const std::uint32_t* select;
  const float* x;  // [rows][hidden]
  float* x_out;
  const void* attended;  // bf16 activations of `from_rows` rows
  void* attended_out;    // of `rows`
  std::uint32_t from_rows, rows, hidden, width;
};

// The numbers of model/weights_source.h: the same on any machine.
struct RandomArgs {
  void* to;  // bf16
  std::uint64_t count, seed;
  float spread;
  std::uint64_t run = 0,
                stride = 0;  // runs of `run` numbers, `stride` apart; 0: one after the other
};

// Codes with one scale, every one as likely as any other.
struct RandomCodesArgs {
  void* to;
  std::uint32_t outputs, inputs;
  WeightCodes codes;  // of which kind
  std::uint64_t seed;
  float spread;
};

struct ArgmaxArgs {
  float* logits;
  CudaBest* best;
  std::uint32_t rows, vocabulary;
  bool sums = true;  // false: CudaBest::sum is 1, or NaN
};

// Sampling, as kernels/draw.h says. What is read once and what is told may be pinned host memory.
struct DrawArgs {
  float* logits;  // [rows][vocabulary]; changed for a while
  const DrawRow* rows;
  const DrawChange* changes;
  float* raw;         // one for each change
  DrawList* scratch;  // as many as lists
  DrawList* lists;
  Drawn* drawn;
  std::uint32_t row_count, vocabulary;
};

// Encodes blocks of bf16 pages: one layer of each pair.
struct SealPair {
  std::uint32_t rows, sealed;  // arena offsets in units of 256 bytes
};
struct SealArgs {
  std::byte* arena;
  const SealPair* pairs;
  const std::uint32_t* count;  // on the device
  std::uint32_t pairs_max, kv_heads, head_dim;
  std::uint64_t row_layer_offset, row_page_bytes, layer_offset, page_bytes;
  CudaKvFormat format;
};

struct CudaApi {
  std::uint32_t version;
  const char* (*error_text)(int error);
  int (*open)(int device, CudaDeviceInfo* info);

  // Addresses reserved once, filled by pages of `granularity` bytes.
  int (*reserve)(std::uint64_t bytes, void** base, std::uint64_t* granularity);
  int (*commit)(void* base, std::uint64_t offset, std::uint64_t bytes);
  int (*decommit)(void* base, std::uint64_t offset, std::uint64_t bytes);
  int (*release)(void* base, std::uint64_t bytes);

  int (*allocate)(std::uint64_t bytes, void** out);
  void (*free)(void* p);
  int (*allocate_host)(std::uint64_t bytes, void** out);  // pinned
  void (*free_host)(void* p);

  int (*make_stream)(CudaStream* out);
  int (*wait)(CudaStream stream);
  int (*copy_to_device)(void* to, const void* from_host, std::uint64_t bytes, CudaStream);
  int (*copy_to_host)(void* to_host, const void* from, std::uint64_t bytes, CudaStream);
  int (*copy_on_device)(void* to, const void* from, std::uint64_t bytes, CudaStream);
  int (*fill)(void* at, int byte, std::uint64_t bytes, CudaStream);
  int (*make_event)(CudaEvent* out);
  void (*free_event)(CudaEvent event);
  int (*record)(CudaEvent event, CudaStream stream);
  int (*wait_for)(CudaEvent event);
  int (*milliseconds)(CudaEvent from, CudaEvent to, float* out);  // waits for `to`

  int (*begin_capture)(CudaStream stream);
  int (*end_capture)(CudaStream stream, CudaGraph* out);
  int (*launch)(CudaGraph graph, CudaStream stream);
  void (*free_graph)(CudaGraph graph);

  int (*attend_decode)(const AttendArgs&, CudaStream);
  int (*attend_prefill)(const AttendArgs&, CudaStream);
  int (*attend_latent)(const AttendArgs&, CudaStream);
  int (*attend_merge)(const AttendArgs&, CudaStream);
  int (*seal)(const SealArgs&, CudaStream);

  // Learns which kernels are fastest for this shape; every one admitted gives the same bits.
  int (*tune_linear)(const LinearArgs&, CudaStream);
  int (*linear)(const LinearArgs&, CudaStream);
  int (*add_norm)(const AddNormArgs&, CudaStream);
  int (*embed)(const EmbedArgs&, CudaStream);
  int (*rope_store)(const RopeStoreArgs&, CudaStream);
  int (*gate)(const GateArgs&, CudaStream);
  int (*gather)(const GatherArgs&, CudaStream);
  int (*argmax)(const ArgmaxArgs&, CudaStream);
  int (*draw)(const DrawArgs&, CudaStream);
  int (*random_bf16)(const RandomArgs&, CudaStream);
  int (*random_codes)(const RandomCodesArgs&, CudaStream);
  int (*read_all)(const void* from, std::uint64_t bytes, CudaStream);  // for the memory's ceiling
};

}  // namespace quire

// The one symbol of libquire_cuda.so.
extern "C" __attribute__((visibility("default"))) const quire::CudaApi* quire_cuda_api();
