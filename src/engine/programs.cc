#include "engine/programs.h"

#include <algorithm>

#include "base/check.h"
#include "engine/blend.h"
#include "engine/converting.h"
#include "engine/pooler.h"
#include "engine/retain.h"
#include "engine/runtime.h"
#include "engine/selecting.h"
#include "engine/sessions.h"
#include "engine/spilling.h"

namespace quire {
namespace {

using Made = std::unique_ptr<Program>;

// What comes first in all hooks: the others find the sequence as it left it.
Made spilling(Runtime& runtime, const Request& r, RootId root) {
  if (r.kv.resident == 0) return nullptr;
  const Result<SpillShape> shape =
      spill_shape(runtime.cache().geometry(root), spill_memory(runtime, r.kv));
  CHECK(shape.ok());  // prepare_job
  return std::make_unique<Spilling>(runtime, shape.value(), root, r.kv.tenant);
}

// What comes after the first prompt of a session is read as an answer is.
std::uint32_t prompt_of(const Request& r) {
  const auto all = static_cast<std::uint32_t>(r.prompt.size());
  return r.session ? std::min(r.session->first_prompt(), all) : all;
}

Made converting(Runtime&, const Request& r, RootId) {
  const bool one = r.choices == 1 && r.beams <= 1;
  return r.kv.convert && one ? std::make_unique<Converting>(r.kv) : nullptr;
}

Made blending(Runtime&, const Request& r, RootId) {
  return r.kv.blend ? std::make_unique<Blending>(*r.kv.blend) : nullptr;
}

Made retaining(Runtime& runtime, const Request& r, RootId root) {
  if (!r.kv.retain) return nullptr;
  return std::make_unique<Retaining>(runtime, r.kv.retain, prompt_of(r), root);
}

Made selecting(Runtime& runtime, const Request& r, RootId root) {
  if (!r.kv.select) return nullptr;
  return std::make_unique<Selecting>(runtime, *r.kv.select, prompt_of(r), root);
}

Made pooling(Runtime& runtime, const Request& r, RootId root) {
  if (r.pooling == Pooling::none) return nullptr;
  return std::make_unique<Pooler>(runtime, r.pooling, prompt_of(r), root);
}

// All programs, in the order in which their hooks are called.
constexpr Made (*kPrograms[])(Runtime&, const Request&, RootId) = {spilling,  converting, blending,
                                                                   retaining, selecting,  pooling};

}  // namespace

ProgramList make_programs(Runtime& runtime, const Request& request, RootId root) {
  ProgramList list;
  for (const auto make : kPrograms)
    if (Made program = make(runtime, request, root)) list.add(std::move(program));
  return list;
}

}  // namespace quire
