#include "model/packed_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <string>

namespace quire {
namespace {

constexpr std::size_t kPackedAlignment = 64;

// One matrix to be packed, of tensors that are all of one type.
struct PackJob {
  StackedRows rows;
  DType type;
  std::size_t offset;  // into PackedWeights::memory
  PackedMatrix* into;

  std::size_t bytes() const { return packed_bytes(type, rows.rows, rows.columns); }
};

// The loader's sink: collects jobs; the memory is reserved once all sizes are known.
class Packer {
 public:
  Packer(const ModelSource& source, ActivationKinds& kinds) : source_(source), kinds_(kinds) {}

  Status matrix(const MatrixParts& of, TensorView& to) {
    TRY(to, source_.tensor(of.parts[0].name));
    tables_.push_back(&to);
    return {};
  }
  Status tied_head(const MatrixParts& of, PackedMatrix& to) { return matrix(of, to); }
  Status matrix(const MatrixParts& of, PackedMatrix& to) {
    TRY(const StackedRows rows, StackedRows::make(source_, of.parts, 0));
    TRY(const std::vector<TensorView> tensors, outlines_of(source_, rows.parts));
    if (of.plain && uses_quantized_activations(tensors[0].type))
      return Error{Code::unsupported,
                   fmt::format("{}: tensor '{}' is of type {}; only plain ones choose experts",
                               source_.path(), tensors[0].name, dtype_info(tensors[0].type).name)};
    add(rows, tensors[0].type, to, !of.plain);
    return {};
  }
  // Neighbours of one type become one matrix.
  Status matrix(const MatrixParts& of, std::vector<ProjectionPart>& to) {
    const std::vector<TensorPart>& parts = of.parts;
    TRY(const std::vector<TensorView> tensors, outlines_of(source_, parts));
    to.reserve(parts.size());  // jobs have pointers into it
    std::uint32_t first = 0;
    for (std::size_t i = 0, end; i < parts.size(); i = end) {
      for (end = i + 1; end < parts.size() && tensors[end].type == tensors[i].type;) ++end;
      const auto from = static_cast<std::ptrdiff_t>(i), until = static_cast<std::ptrdiff_t>(end);
      TRY(const StackedRows rows,
          StackedRows::make(source_, {parts.begin() + from, parts.begin() + until}, 0));
      to.push_back({first, {}});
      add(rows, tensors[i].type, to.back().matrix);
      first += rows.rows;
    }
    return {};
  }
  Status matrix(const MatrixParts& of, PackedPair& to) {
    if (of.parts.size() == 1) return matrix(of, to.up);
    TRY(const StackedRows rows, StackedRows::make(source_, of.parts, kGateUpUnit));
    TRY(const std::vector<TensorView> tensors, outlines_of(source_, rows.parts));
    to.interleaved = tensors[0].type == tensors[1].type && rows.rows % (2 * kGateUpUnit) == 0;
    if (to.interleaved) {
      add(rows, tensors[0].type, to.both);
      return {};
    }
    TRY_STATUS(matrix({.parts = {of.parts[0]}}, to.gate));
    return matrix({.parts = {of.parts[1]}}, to.up);
  }
  Status vector(const std::vector<TensorPart>& parts, bool plus_one, std::vector<float>& to) {
    TRY(to, read_vectors(source_, parts, plus_one));
    return {};
  }

  // Embeddings, as they are: whoever writes to the file must not reach who reads them all the time.
  Result<HugeBuffer> copy_tables() {
    std::size_t bytes = 0;
    for (const TensorView* t : tables_) bytes += t->data.size();
    TRY(HugeBuffer memory, HugeBuffer::allocate(bytes, source_.path() + "'s embedding"));
    std::byte* to = memory.data();
    for (TensorView* t : tables_) {
      const std::span from = t->data;
      for (std::size_t at = 0; at < from.size(); at += kBytesCopiedAtOnce) {
        t->data = from.subspan(at, std::min(kBytesCopiedAtOnce, from.size() - at));
        std::memcpy(to + at, t->data.data(), t->data.size());
        source_.drop_pages(*t);
      }
      t->data = {to, from.size()};
      to += from.size();
    }
    return memory;
  }

  Result<HugeBuffer> pack(ThreadPool& pool) {
    TRY(HugeBuffer memory, HugeBuffer::allocate(bytes_, source_.path() + "'s packed weights"));
    std::stable_sort(jobs_.begin(), jobs_.end(), [](const PackJob& a, const PackJob& b) {
      return std::uint64_t{a.rows.rows} * a.rows.columns >
             std::uint64_t{b.rows.rows} * b.rows.columns;
    });
    std::atomic<std::size_t> next{0};
    std::mutex mutex;
    Status all;
    pool.run([&](ThreadPool::Worker) {
      for (std::size_t i; (i = next.fetch_add(1)) < jobs_.size();) {
        Status packed = pack(jobs_[i], memory);
        if (packed.ok()) continue;
        const std::lock_guard lock(mutex);
        all = std::move(packed);
        next = jobs_.size();
      }
    });
    if (!all.ok()) return all.error();
    return memory;
  }

 private:
  void add(const StackedRows& rows, DType type, PackedMatrix& into, bool encoded = true) {
    if (encoded) (uses_quantized_activations(type) ? kinds_.quantized : kinds_.plain) = true;
    kinds_.half_sums |= uses_half_sums(type);
    jobs_.push_back({rows, type, bytes_, &into});
    bytes_ += (jobs_.back().bytes() + kPackedAlignment - 1) / kPackedAlignment * kPackedAlignment;
  }

  Status pack(const PackJob& job, const HugeBuffer& memory) const {
    TRY(const std::vector<TensorView> tensors, tensors_of(source_, job.rows.parts));
    const bool in_file_order = tensors.size() == 1 && job.rows.parts[0].heads.dim == 0;
    std::uint32_t dropped = 0;
    const auto row = [&](std::uint32_t o) {
      // The vocabulary is most of a small model's file, so it must never be in memory twice.
      if (in_file_order && o >= dropped + 2 * kRowsDroppedAtOnce) {
        TensorView part = tensors[0];
        const std::size_t bytes = row_bytes(part.type, part.columns());
        part.data = part.data.subspan(dropped * bytes, kRowsDroppedAtOnce * bytes);
        source_.drop_pages(part);
        dropped += kRowsDroppedAtOnce;
      }
      const StackedRows::Row from = job.rows.at(o);
      return tensors[from.tensor].row(from.row);
    };
    *job.into = pack_matrix(job.type, job.rows.rows, job.rows.columns, row,
                            {memory.data() + job.offset, job.bytes()});
    for (const TensorView& t : tensors) source_.drop_pages(t);
    return {};
  }

  static constexpr std::uint32_t kRowsDroppedAtOnce = 8192;
  static constexpr std::size_t kBytesCopiedAtOnce = 4 << 20;

  const ModelSource& source_;
  ActivationKinds& kinds_;
  std::vector<PackJob> jobs_;
  std::size_t bytes_ = 0;
  std::vector<TensorView*> tables_;
};

}  // namespace

Result<PackedWeights> load_packed_weights(const ModelSource& source, ThreadPool& pool) {
  PackedWeights w;
  Packer packer(source, w.kinds);
  TRY_STATUS(load_weights(packer, source.config(), w));
  TRY(w.table, packer.copy_tables());
  TRY(w.memory, packer.pack(pool));
  return w;
}

}  // namespace quire
