#include "engine/programs.h"

#include "engine/blend.h"
#include "engine/converting.h"
#include "engine/retain.h"
#include "engine/runtime.h"
#include "engine/selecting.h"

namespace quire {
namespace {

using Made = std::unique_ptr<Program>;

std::uint32_t prompt_of(const Request& r) { return static_cast<std::uint32_t>(r.prompt.size()); }

Made converting(const Runtime&, const Request& r, RootId) {
  const bool one = r.choices == 1 && r.beams <= 1;
  return r.kv.convert && one ? std::make_unique<Converting>(r.kv) : nullptr;
}

Made blending(const Runtime&, const Request& r, RootId) {
  return r.kv.blend ? std::make_unique<Blending>(*r.kv.blend) : nullptr;
}

Made retaining(const Runtime& runtime, const Request& r, RootId root) {
  if (!r.kv.retain) return nullptr;
  return std::make_unique<Retaining>(runtime, r.kv.retain, prompt_of(r), root);
}

Made selecting(const Runtime& runtime, const Request& r, RootId root) {
  if (!r.kv.select) return nullptr;
  return std::make_unique<Selecting>(runtime, *r.kv.select, prompt_of(r), root);
}

// All programs, in the order in which their hooks are called.
constexpr Made (*kPrograms[])(const Runtime&, const Request&, RootId) = {converting, blending,
                                                                         retaining, selecting};

}  // namespace

ProgramList make_programs(const Runtime& runtime, const Request& request, RootId root) {
  ProgramList list;
  for (const auto make : kPrograms)
    if (Made program = make(runtime, request, root)) list.add(std::move(program));
  return list;
}

}  // namespace quire
