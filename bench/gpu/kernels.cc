// quire_gpu_kernels: how near the CUDA kernels come to what this GPU's memory and tensor cores
// give.
//
// Measures the read rate first, then decode attention as a share of it, matrix products for 1 to
// 64 rows as a share of it, and prefill attention and products in TFLOP/s. Everything runs inside
// captured graphs over data much larger than the L2 cache, as in a real step. Prints one JSON
// object; bench/gpu/run makes a table of it.
#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "base/random.h"
#include "kernels/cuda/coded.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/packed.h"
#include "kernels/cuda/plan_testing.h"
#include "kernels/cuda/sealed.h"

namespace quire {
namespace {

const CudaApi* api;
CudaDeviceInfo device_info;
CudaStream stream;

void ok(int error, const char* what) {
  if (error == 0) return;
  fmt::print(stderr, "{}: {}\n", what, api->error_text(error));
  std::exit(1);
}

void* room(std::size_t bytes) {
  void* p = nullptr;
  ok(api->allocate(bytes, &p), "allocate");
  return p;
}
template <class T>
T* up(const std::vector<T>& v) {
  void* p = room(v.size() * sizeof(T));
  ok(api->copy_to_device(p, v.data(), v.size() * sizeof(T), stream), "copy");
  ok(api->wait(stream), "copy");
  return static_cast<T*>(p);
}

// Median microseconds of one replay of what `work` queues.
double graph_us(const std::function<void()>& work, int replays = 11) {
  CudaGraph graph;
  CudaEvent from, to;
  ok(api->make_event(&from), "event");
  ok(api->make_event(&to), "event");
  work();
  ok(api->wait(stream), "first run");
  ok(api->begin_capture(stream), "capture");
  work();
  ok(api->end_capture(stream, &graph), "capture");
  std::vector<double> times;
  for (int i = -replays; i < replays; ++i) {  // the first half finds clocks and page tables asleep
    ok(api->record(from, stream), "record");
    ok(api->launch(graph, stream), "launch");
    ok(api->record(to, stream), "record");
    float ms = 0;
    ok(api->milliseconds(from, to, &ms), "run");
    if (i >= 0) times.push_back(ms * 1000);
  }
  api->free_graph(graph);
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

double peak = 0;  // bytes per microsecond

std::string first_field(bool& first) { return std::exchange(first, false) ? "" : ",\n"; }

// Latent attention: `dim` is kLatentValues, `kv_heads` the groups of query heads.
struct Decode {
  std::uint32_t query_heads, kv_heads, dim, batch, length, layers;
  CudaKvFormat format = CudaKvFormat::bf16;
};

const char* name_of(CudaKvFormat format) {
  constexpr const char* kNames[] = {"bf16", "fp8", "int8", "int4", "int2"};
  return kNames[static_cast<int>(format)];
}

void bench_decode(const Decode& c, bool& first) {
  const std::uint32_t pages = (c.length + kCudaPage - 1) / kCudaPage;
  const bool latent = c.dim == kLatentValues;
  const std::uint32_t stored = latent ? 1 : c.kv_heads, key_dim = latent ? kLatentKeys : c.dim;
  const std::uint64_t page_bytes = latent ? kCudaPage * kLatentKeys * 2
                                   : c.format == CudaKvFormat::bf16
                                       ? kCudaPage * c.dim * 4
                                       : sealed_page_bytes(c.format, c.dim),
                      block = (c.layers * stored * page_bytes + 255) / 256 * 256,
                      blocks = std::uint64_t{c.batch} * pages;
  auto* arena = static_cast<std::byte*>(room(blocks * block));
  ok(api->random_bf16({arena, blocks * block / 2, 1, 1}, stream), "noise");
  std::vector<std::uint32_t> tables(blocks);
  for (std::uint64_t i = 0; i < blocks; ++i)
    tables[i] = static_cast<std::uint32_t>(i * block / 256);
  Random random(2);
  for (std::uint64_t i = blocks; i > 1; --i) std::swap(tables[i - 1], tables[random.below(i)]);
  CudaPlan plan;
  // As the model's plan has it: rows stay whole where there are enough of them.
  const bool whole = !latent && cuda_rows_stay_whole(c.batch * c.kv_heads, page_bytes, c.format,
                                                     device_info.multiprocessors);
  for (std::uint32_t b = 0; b < c.batch; ++b)
    add_attention(plan, {b * pages, b, c.length - 1, c.length - 1, 0, c.length, kNoPartial, 1, 0},
                  cuda_split(c.dim), whole ? 0 : 1);
  if (c.format != CudaKvFormat::bf16)
    for (AttendItem& item : plan.items) item.row_count = sealed_row_count(1, 0);
  void* queries = room(std::size_t{c.batch} * c.query_heads * key_dim * 2);
  ok(api->random_bf16({queries, std::size_t{c.batch} * c.query_heads * key_dim, 3, 0.1f}, stream),
     "noise");
  AttendArgs a{};
  a.arena = arena;
  a.tables = up(tables);
  a.queries = queries;
  a.output = room(activation_elements(c.batch, c.query_heads * c.dim) * 2);
  a.query_heads = c.query_heads, a.kv_heads = c.kv_heads, a.head_dim = c.dim;
  a.page_bytes = page_bytes;
  a.format = c.format;
  use_plan(
      plan, a, [](const auto& v) { return up(v); }, room);
  const auto layers = [&](bool merged) {
    return graph_us([&] {
             for (std::uint32_t l = 0; l < c.layers; ++l) {
               a.layer_offset = l * stored * page_bytes;
               ok(latent ? api->attend_latent(a, stream) : api->attend_decode(a, stream), "attend");
               if (merged && plan.partials > 0) ok(api->attend_merge(a, stream), "merge");
             }
           }) /
           c.layers;
  };
  const double us = layers(true), alone = layers(false);
  const double bytes = 1.0 * c.batch * pages * stored * page_bytes;
  fmt::print(
      "{}{{\"attend\": \"decode\", \"format\": \"{}\", \"heads\": \"{}/{}/{}\", \"batch\": {}, "
      "\"context\": {}, \"us\": {:.2f}, \"share\": {:.4f}, \"share_without_merge\": {:.4f}}}",
      first_field(first), name_of(c.format), c.query_heads, stored, key_dim, c.batch, c.length, us,
      bytes / us / peak, bytes / alone / peak);
  for (const void* p : {static_cast<const void*>(arena), static_cast<const void*>(a.tables),
                        static_cast<const void*>(a.items), static_cast<const void*>(a.item_count),
                        static_cast<const void*>(a.merges), a.queries,
                        static_cast<const void*>(a.output), static_cast<const void*>(a.partials)})
    api->free(const_cast<void*>(p));
}

void bench_prefill(std::uint32_t query_heads, std::uint32_t kv_heads, std::uint32_t dim,
                   std::uint32_t rows, std::uint32_t past, bool& first) {
  const std::uint32_t length = past + rows, pages = (length + kCudaPage - 1) / kCudaPage;
  const std::uint64_t page_bytes = std::uint64_t{kCudaPage} * dim * 4,
                      block = kv_heads * page_bytes;
  void* arena = room(pages * block);
  ok(api->random_bf16({arena, pages * block / 2, 1, 1}, stream), "noise");
  std::vector<ArenaOffset> blocks(pages);
  for (std::uint32_t i = 0; i < pages; ++i) blocks[i] = ArenaOffset(i * block / kArenaUnit);
  const KvSequenceView sequence{blocks.data(), 0, rows, past};
  CudaPlan plan;
  plan_cuda_attention(
      {nullptr, &sequence, 1, kCudaPage, 0},
      {query_heads, kv_heads, dim, static_cast<std::uint32_t>(device_info.multiprocessors)}, plan);
  void* queries = room(std::size_t{rows} * query_heads * dim * 2);
  ok(api->random_bf16({queries, std::size_t{rows} * query_heads * dim, 3, 0.1f}, stream), "noise");
  AttendArgs a{};
  a.arena = static_cast<std::byte*>(arena);
  a.tables = up(plan.tables);
  a.queries = queries;
  a.output = room(activation_elements(rows, query_heads * dim) * 2);
  a.query_heads = query_heads, a.kv_heads = kv_heads, a.head_dim = dim;
  use_plan(
      plan, a, [](const auto& v) { return up(v); }, room);
  a.page_bytes = page_bytes;
  const double us = graph_us([&] {
    ok(api->attend_prefill(a, stream), "prefill");
    if (plan.partials > 0) ok(api->attend_merge(a, stream), "merge");
  });
  const double flops = 4.0 * query_heads * dim * rows * (past + 0.5 * rows);
  fmt::print(
      "{}{{\"attend\": \"prefill\", \"heads\": \"{}/{}/{}\", \"rows\": {}, \"past\": {}, \"us\": "
      "{:.1f}, \"tflops\": {:.1f}}}",
      first_field(first), query_heads, kv_heads, dim, rows, past, us, flops / us / 1e6);
  for (const void* p : {static_cast<const void*>(arena), static_cast<const void*>(a.tables),
                        static_cast<const void*>(a.items), static_cast<const void*>(a.item_count),
                        static_cast<const void*>(a.merges), a.queries,
                        static_cast<const void*>(a.output), static_cast<const void*>(a.partials)})
    api->free(const_cast<void*>(p));
}

// Weights of bf16, or as codes.
void bench_linear(std::uint32_t outputs, std::uint32_t inputs, LinearOutput kind, bool& first) {
  const std::size_t plain = std::size_t{outputs} * inputs * 2,
                    all = std::max<std::size_t>(2 * plain, std::size_t{400} << 20);
  auto* weights = static_cast<std::byte*>(room(all));
  void* unpacked = room(plain);
  constexpr std::uint32_t kMost = 8192;
  void* x = room(std::size_t{kMost} * inputs * 2);
  ok(api->random_bf16({x, std::size_t{kMost} * inputs, 2, 1}, stream), "noise");
  void* y = room(std::size_t{kMost} * outputs * (kind == LinearOutput::rows_f32 ? 4 : 2));
  for (const std::uint32_t bits : {16u, 8u, 4u}) {
    const WeightCodes codes{bits == 16 ? nullptr : weights, bits,
                            bits == 4 ? CodeForm::symmetric : CodeForm::affine};
    const std::size_t bytes = codes.data ? coded_bytes(codes, outputs, inputs) : plain;
    const auto copies = static_cast<std::uint32_t>(all / bytes);
    if (!codes.data) ok(api->random_bf16({weights, all / 2, 1, 0.02f}, stream), "noise");
    for (std::uint32_t i = 0; codes.data && i < copies; ++i)
      ok(api->random_codes({weights + i * bytes, outputs, inputs, codes, i, 0.02f}, stream),
         "noise");
    for (const std::uint32_t rows : {1u, 8u, 16u, 32u, 64u, 128u, 256u, 512u, 8192u}) {
      if (rows > 256 && kind == LinearOutput::rows_f32) continue;
      if (codes.data && (rows == 64 || rows > 128))
        continue;  // what unpacking adds is known by then
      LinearArgs a{.weights = codes.data ? unpacked : weights,
                   .activations = x,
                   .output = y,
                   .rows = rows,
                   .outputs = outputs,
                   .inputs = inputs,
                   .kind = rows > kPackedRowsMax && kind == LinearOutput::gated
                               ? LinearOutput::rows_bf16
                               : kind,
                   .codes = codes};
      ok(api->tune_linear(a, stream), "tune");
      const double us = graph_us(
                            [&] {
                              for (std::uint32_t i = 0; i < copies; ++i) {
                                (codes.data ? a.codes.data : a.weights) = weights + i * bytes;
                                ok(api->linear(a, stream), "linear");
                              }
                            },
                            rows > 1000 ? 3 : 11) /
                        copies;
      fmt::print(
          "{}{{\"linear\": \"{}x{}\", \"bits\": {}, \"rows\": {}, \"us\": {:.2f}, \"share\": "
          "{:.4f}, \"tflops\": {:.1f}}}",
          first_field(first), outputs, inputs, bits, rows, us,
          static_cast<double>(bytes) / us / peak, 2.0 * rows * outputs * inputs / us / 1e6);
    }
  }
  for (void* p : {static_cast<void*>(weights), unpacked, x, y}) api->free(p);
}

int run() {
  const auto device = open_cuda();
  if (!device.ok()) {
    fmt::print(stderr, "{}\n", device.error().message);
    return 1;
  }
  api = device.value()->api;
  device_info = device.value()->info;
  ok(api->make_stream(&stream), "stream");
  constexpr std::size_t kRead = std::size_t{8} << 30;
  void* big = room(kRead);
  ok(api->random_bf16({big, kRead / 2, 1, 1}, stream), "noise");
  peak = kRead / graph_us([&] { ok(api->read_all(big, kRead, stream), "read"); });
  api->free(big);
  fmt::print("{{\"device\": \"{}\", \"read_tb_per_s\": {:.3f}, \"results\": [\n",
             device.value()->info.name, peak / 1e6);
  bool first = true;
  for (const Decode& c : {Decode{32, 8, 128, 32, 4096, 32},
                          {32, 8, 128, 128, 2048, 16},
                          {32, 8, 128, 8, 8192, 32},
                          {32, 8, 128, 1, 32768, 32},
                          {32, 8, 128, 1, 4096, 32},
                          {32, 8, 128, 256, 1024, 16},
                          {32, 8, 128, 32, 4096, 32, CudaKvFormat::fp8},
                          {32, 8, 128, 32, 4096, 32, CudaKvFormat::int8},
                          {32, 8, 128, 32, 4096, 32, CudaKvFormat::int4},
                          {32, 8, 128, 128, 2048, 32, CudaKvFormat::int4},
                          {32, 8, 128, 32, 4096, 32, CudaKvFormat::int2},
                          {9, 3, 64, 32, 4096, 30},
                          {9, 3, 64, 128, 2048, 30},
                          {9, 3, 64, 8, 8192, 30},
                          {16, 1, kLatentValues, 32, 4096, 27},
                          {128, 8, kLatentValues, 32, 4096, 27}})
    bench_decode(c, first);
  bench_prefill(32, 8, 128, 8192, 0, first);
  bench_prefill(32, 8, 128, 2048, 0, first);
  bench_prefill(32, 8, 128, 68, 32700, first);
  bench_prefill(32, 8, 128, 4, 32700, first);
  bench_prefill(9, 3, 64, 8192, 0, first);
  bench_linear(6144, 4096, LinearOutput::rows_bf16, first);
  bench_linear(4096, 4096, LinearOutput::rows_bf16, first);
  bench_linear(28672, 4096, LinearOutput::gated, first);
  bench_linear(4096, 14336, LinearOutput::rows_bf16, first);
  bench_linear(128256, 4096, LinearOutput::rows_f32, first);
  fmt::print("\n]}}\n");
  return 0;
}

}  // namespace
}  // namespace quire

int main() { return quire::run(); }
