#include "engine/convert.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/encoded.h"

namespace quire {
namespace {

constexpr std::uint32_t kBlocksAtOnce = 16;  // per reservation

class Converter {
 public:
  Converter(Runtime& runtime, const Sequence& from, Sequence& to)
      : r_(runtime),
        from_(from),
        to_(to),
        source_(runtime.cache().geometry(from.root())),
        target_(runtime.cache().geometry(to.root())),
        kernels_(encoded_kernels(runtime.isa())) {}

  // The next blocks of `to`, up to `end`.
  Status blocks(std::uint32_t end) {
    const std::uint32_t tokens = target_.tokens_per_block, first = to_.length() / tokens;
    const StepNeed need{&to_, (end - first) * tokens};
    TRY(Reservation room, r_.cache().reserve({&need, 1}));
    for (std::uint32_t g = 0; g < target_.groups.size(); ++g) {
      const KvSequenceView view = room.view(0, g, 0);
      const LayerGroup& group = target_.groups[g];
      const std::uint32_t pages = group.lanes();
      r_.pool().run([&](ThreadPool::Worker worker) {
        for (std::uint32_t i = worker.index; i < (end - first) * pages; i += worker.count) {
          const ArenaOffset block = view.blocks[first + i / pages];
          if (block != kNoBlock) page(group, i % pages, first + i / pages, block);
        }
      });
    }
    room.commit(0, need.count);
    return {};
  }

 private:
  void page(const LayerGroup& group, std::uint32_t index, std::uint32_t block,
            ArenaOffset to) const {
    const std::uint32_t layer = group.layers[index / group.kv_heads * group.layers_per_page()],
                        head = index % group.kv_heads;
    const LayerPlace place = source_.places[layer];
    const LayerGroup& rows = source_.groups[place.group];
    std::byte* const arena = r_.cache().arena();
    const std::byte* at =
        arena_at(arena, from_.table(place.group)[block]) +
        (std::size_t{place.index} * rows.kv_heads + head) * source_.page_bytes(rows);
    std::byte* const page = arena_at(arena, to) + index * target_.page_bytes(group);
    if (!group.sealed()) return static_cast<void>(std::memcpy(page, at, source_.page_bytes(rows)));
    const auto seal = [&](Side side, std::size_t row_offset, std::size_t offset) {
      EncodedPart part = r_.executor().page_work()->sealed_part(target_, layer, head, side,
                                                                block * target_.tokens_per_block);
      part.member_stride = rows.kv_heads * source_.page_bytes(rows);
      kernels_.seal(part, at + row_offset, page + offset);
    };
    seal(Side::keys, 0, 0);
    seal(Side::values, source_.key_bytes(rows), target_.key_bytes(group));
  }

  Runtime& r_;
  const Sequence& from_;
  Sequence& to_;
  const Geometry &source_, &target_;
  const EncodedKernels& kernels_;
};

}  // namespace

Status convert_blocks(Runtime& runtime, const Sequence& from, Sequence& to, std::uint32_t tokens) {
  const Geometry& target = runtime.cache().geometry(to.root());
  const std::uint32_t block = target.tokens_per_block;
  CHECK(tokens % block == 0 && tokens <= from.length() && to.length() % block == 0);
  if (runtime.executor().traits().device != DeviceKind::cpu)
    return Error{Code::unsupported, "blocks in a GPU's memory are not converted"};
  for (const LayerGroup& g : runtime.cache().geometry(from.root()).groups)
    for (const LayerGroup& into : target.groups)
      if (g.sealed() || g.format->rows != into.format->rows || g.window != 0)
        return Error{Code::unsupported,
                     "only blocks of exact rows, of the type that the format "
                     "rounds to and without a window, are converted"};
  Converter converter(runtime, from, to);
  while (to.length() < tokens)
    TRY_STATUS(converter.blocks(std::min(tokens / block, to.length() / block + kBlocksAtOnce)));
  return {};
}

}  // namespace quire
