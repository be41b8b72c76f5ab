// engine/converting.h - the program of a request in a lossy format that takes the exact blocks of its
// prompt that are cached, encodes them and goes on from there (kv.convert).
//
// The sequence's key chain says how many blocks were made in this way, and serves only requests that
// converted as many. The answer depends on what was cached, so it is marked as approximate.
#pragma once

#include <memory>
#include <string>

#include "engine/program.h"
#include "engine/request.h"

namespace quire {

class Converting final : public Program {
 public:
  explicit Converting(const KvPolicy& policy)
      : tenant_(policy.tenant),
        salt_(policy.salt),
        adapter_(policy.root_adapter()),
        storage_(policy.storage) {}

  std::unique_ptr<Program> fork() const override { return std::make_unique<Converting>(*this); }
  // The converted blocks that the sequence begins with. Nothing if blocks of its own chain serve as
  // many tokens, or if there is no room.
  std::optional<Attached> attach(Stepper& stepper, Sequence& s,
                                 const SequenceOptions& options) override;
  Yield yield(const Sequence&) const override { return converted_ ? Yield::park : Yield::either; }
  // The key chain says that blocks were converted, so no other request may use what is computed
  // after.
  void reset(Sequence& s) override {
    if (converted_) s.limit_purity(0);
    converted_ = false;
  }
  bool plans_ahead() const override { return true; }
  void report(ProgramReport& report) const override { report.converted |= converted_; }

 private:
  std::string tenant_, salt_, adapter_;
  std::shared_ptr<const StoragePolicy> storage_;
  bool converted_ = false;
};

}  // namespace quire
