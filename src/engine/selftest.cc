#include "engine/selftest.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/hash.h"
#include "base/random.h"
#include "engine/stepper.h"

namespace quire {
namespace {

// A hash of the logits of every position of one prompt; 0 where they are not finite.
using LogitTable = std::vector<std::uint64_t>;

std::uint64_t fingerprint(std::span<const float> logits) {
  const bool finite = std::all_of(logits.begin(), logits.end(), [](float x) { return x - x == 0; });
  return finite ? hash64(logits.data(), logits.size_bytes()) | 1 : 0;
}

std::vector<TokenId> text_like(const Runtime& runtime, std::uint32_t count, std::uint64_t seed) {
  Random random(seed);
  std::vector<TokenId> tokens(count);
  const std::uint32_t vocabulary = runtime.config().vocabulary;
  for (TokenId& t : tokens) t = static_cast<TokenId>(random.below(vocabulary));
  return tokens;
}

constexpr std::uint32_t kAdaptedPositions = 12;  // read with adapters by each variant

// Of the lossy formats: one of 8 bits and one of 4; the latter wants heads in groups of 32.
constexpr const char *kSample = "int8/q4_0", *kSampleOfAnyHead = "int8";

class Selftest {
 public:
  Selftest(const std::string& path, RuntimeOptions base, bool all,
           const std::function<void(const SelftestCheck&)>& report)
      : path_(path),
        base_(base),
        all_(all),
        format_given_(base.kv_format != "auto"),
        report_(report) {}

  Result<bool> run() {
    std::vector<std::string> tried{base_.kv_format};
    const bool device = base_.device == DeviceKind::cuda;
    if (all_ && !format_given_ && device) {
      tried = {"bf16", "fp8-e4m3", "int8", "hadamard-int4-head", "hadamard-int2-head"};
    } else if (all_ && !format_given_) {
      tried.clear();
      for (const Format* f : formats()) {
        const bool known = !f->keys->calibrated ||
                           std::ranges::any_of(base_.calibrations, [&](const Calibration& c) {
                             return c.fits(*f->keys);
                           });
        if (known)
          tried.emplace_back(f->name);
        else
          not_tried(std::string(f->name), "not calibrated for this model");
      }
    } else if (base_.kv_format == "auto" && base_.device == DeviceKind::cpu) {
      tried.emplace_back(kSample);
    }
    for (const std::string& format : tried) {
      sample_ = format == kSample && !all_;
      base_.kv_format = format;
      for (const std::uint32_t block : all_ && !device ? std::vector<std::uint32_t>{16, 32, 64}
                                                       : std::vector{base_.tokens_per_block}) {
        base_.tokens_per_block = block;
        Status done = one_configuration();
        if (!done.ok() && sample_ && !opened_) {
          base_.kv_format = kSampleOfAnyHead;
          done = one_configuration();
        }
        // A device has no kernels for some formats of wide heads.
        if (device && all_ && !opened_ && done.error().code == Code::unsupported &&
            format != "bf16") {
          not_tried(format, done.error().message);
          continue;
        }
        TRY_STATUS(done);
      }
    }
    return all_same_;
  }

 private:
  Status one_configuration() {
    RuntimeOptions options = base_;
    options.kv_cache_bytes = std::max<std::uint64_t>(base_.kv_cache_bytes, std::uint64_t{1} << 30);
    opened_ = false;
    TRY(const std::unique_ptr<Runtime> runtime, Runtime::open(path_, options));
    opened_ = true;
    Runtime& r = *runtime;
    stepper_.emplace(r);
    vocabulary_ = r.config().vocabulary;
    prefix_ = fmt::format("{}, blocks of {}: ", r.kv_format(), r.geometry().tokens_per_block);
    length_ = std::min<std::uint32_t>(all_ || sample_ ? 200 : 333, r.context() / 2);
    // Long enough that windows slide, where the model has them, and attention has more than one
    // split.
    for (const LayerGroup& g : r.geometry().groups)
      if (g.window > 0) length_ = std::min(r.context() / 2, std::max(length_, g.window + 77));
    prompt_ = text_like(r, length_, 42);
    TRY(reference_, compute(r, prompt_, length_));
    same("whole prompt, finite", reference_);

    for (const std::uint32_t chunk : {1u, 7u, 32u, 100u}) {
      if (chunk == 1 && !all_ && length_ > 400) continue;  // slow, and covered by the decode check
      TRY(const LogitTable got, compute(r, prompt_, chunk));
      same(fmt::format("prompt in chunks of {}", chunk), got);
    }
    TRY_STATUS(cached(r));
    TRY_STATUS(batched(r));
    TRY_STATUS(forked(r));
    TRY_STATUS(rolled_back(r));
    TRY_STATUS(preempted(r));
    TRY_STATUS(beams(r));
    TRY_STATUS(side_by_side(r));
    const auto heard = [&](const SelftestCheck& c) { tell(c); };
    TRY_STATUS(selftest_engine(r, prompt_, prefix_, heard));
    TRY_STATUS(selftest_adapters(r, prompt_, prefix_, heard));
    if (options.device == DeviceKind::cpu) TRY_STATUS(selftest_convert(r, prompt_, prefix_, heard));
    // Every method in every format, and in one of them with blocks of every size and long answers.
    const bool thorough = format_given_ || options.kv_format == "f16";
    const bool common = options.tokens_per_block == RuntimeOptions{}.tokens_per_block;
    const SelftestMethods methods = !all_      ? SelftestMethods::few
                                    : thorough ? SelftestMethods::thoroughly
                                    : common   ? SelftestMethods::all
                                               : SelftestMethods::few;
    if (options.device == DeviceKind::cpu && !sample_)
      TRY_STATUS(selftest_retain(r, prompt_, prefix_, methods, heard));
    if (options.device != DeviceKind::cpu || sample_)
      return {};  // threads and instruction sets do not matter on a GPU
    TRY_STATUS(selftest_tier(path_, options, prompt_, prefix_, heard));
    TRY(adapted_, adapters_fingerprint(r, std::span(prompt_).first(kAdaptedPositions)));
    return variants(options);
  }

  // Computes every position's logits without looking into the prefix cache.
  Result<LogitTable> compute(Runtime& r, std::span<const TokenId> prompt, std::uint32_t chunk) {
    r.cache().clear(true);
    TRY(Sequence s, r.empty_sequence(static_cast<std::uint32_t>(prompt.size())));
    return extend(r, s, prompt, chunk);
  }

  Result<LogitTable> extend(Runtime& r, Sequence& s, std::span<const TokenId> prompt,
                            std::uint32_t chunk) {
    LogitTable table(prompt.size());
    for (std::uint32_t at = s.length(); at < prompt.size();) {
      const auto count = std::min<std::uint32_t>(
          {chunk, static_cast<std::uint32_t>(prompt.size()) - at, r.executor().traits().rows_max});
      const StepItem item{&s, prompt.subspan(at, count), Logits::all};
      TRY(const std::span<float> logits, stepper_->run({&item, 1}));
      for (std::uint32_t i = 0; i < count; ++i) table[at + i] = fingerprint(row(logits, i));
      at += count;
    }
    return table;
  }

  // A second request that finds the first one's blocks.
  Status cached(Runtime& r) {
    TRY([[maybe_unused]] const LogitTable first, compute(r, prompt_, length_));
    TRY(Sequence s, r.open_sequence(length_));
    const Attached hit = r.cache().attach(s, prompt_);
    const std::uint32_t start = s.length();
    TRY(const LogitTable got, extend(r, s, prompt_, length_));
    same(fmt::format("{} of {} tokens from the prefix cache", hit.tokens, length_), got, start,
         hit.tokens == 0 ? "nothing was served" : "");
    return {};
  }

  // The prompt beside strangers of other lengths, in one step with them, chunk by chunk.
  Status batched(Runtime& r) {
    for (const std::uint32_t width :
         all_ ? std::vector<std::uint32_t>{2, 5, 8, 32} : std::vector<std::uint32_t>{3, 8, 32}) {
      r.cache().clear(true);
      std::vector<std::vector<TokenId>> prompts;
      std::vector<Sequence> sequences(width);
      const std::uint32_t mine = width / 2,
                          rows =
                              std::max(1u, std::min(16u, r.executor().traits().rows_max / width));
      for (std::uint32_t i = 0; i < width; ++i) {
        prompts.push_back(i == mine ? prompt_
                                    : text_like(r, length_ / 2 + 5 * i % length_, 1000 + i));
        TRY(sequences[i], r.empty_sequence(length_ * 2));
      }
      LogitTable table(prompt_.size());
      const std::uint32_t until = std::min(length_, 96u);  // past block and unit edges
      while (sequences[mine].length() < until) {
        std::vector<StepItem> items;
        for (std::uint32_t i = 0; i < width; ++i) {
          const std::uint32_t at = sequences[i].length();
          const auto left =
              static_cast<std::uint32_t>(prompts[i].size()) -
              std::min<std::uint32_t>(at, static_cast<std::uint32_t>(prompts[i].size()));
          const std::uint32_t count =
              std::min({left, 1 + (i + at) % rows, i == mine ? until - at : rows});
          if (count > 0)
            items.push_back({&sequences[i], std::span(prompts[i]).subspan(at, count),
                             i == mine ? Logits::all : Logits::last});
        }
        const std::uint32_t at = sequences[mine].length();
        std::size_t skip = 0, rows_mine = 0;
        for (const StepItem& item : items) {
          if (item.sequence == &sequences[mine]) {
            rows_mine = item.tokens.size();
            break;
          }
          ++skip;
        }
        TRY(const std::span<float> logits, stepper_->run(items));
        for (std::size_t i = 0; i < rows_mine; ++i)
          table[at + i] = fingerprint(row(logits, skip + i));
      }
      same(fmt::format("in a batch of {}", width), table, 0, "", until);
    }
    return {};
  }

  // A fork that goes another way does not disturb the one it left.
  Status forked(Runtime& r) {
    const std::uint32_t half = length_ / 2;
    r.cache().clear(true);
    TRY(Sequence s, r.empty_sequence(length_));
    TRY([[maybe_unused]] const LogitTable head, extend(r, s, std::span(prompt_).first(half), half));
    TRY(Sequence other, r.cache().fork(s));
    std::vector<TokenId> stray(prompt_.begin(), prompt_.begin() + half);
    for (const TokenId t : text_like(r, 40, 7)) stray.push_back(t);
    stray.resize(std::min<std::size_t>(stray.size(), length_));
    TRY([[maybe_unused]] const LogitTable ignored, extend(r, other, stray, 13));
    TRY(const LogitTable got, extend(r, s, prompt_, 64));
    same("after a fork went another way", got, half);
    return {};
  }

  // Tokens are taken back and computed again.
  Status rolled_back(Runtime& r) {
    r.cache().clear(true);
    TRY(Sequence s, r.empty_sequence(length_));
    TRY([[maybe_unused]] const LogitTable all, extend(r, s, prompt_, length_));
    const std::uint32_t kept = r.cache().truncate(s, length_ - std::min(length_ - 1, 45u));
    TRY(const LogitTable got, extend(r, s, prompt_, 17));
    same("after rolling back", got, kept);
    return {};
  }

  // A sequence is preempted halfway and resumed: from nothing, from its own blocks that are still
  // cached, and from parked blocks.
  Status preempted(Runtime& r) {
    const std::uint32_t half = length_ / 2 + 5;
    const struct {
      const char* name;
      Preempt how;
      bool blocks_lost;
    } ways[] = {{"its blocks lost", Preempt::recompute, true},
                {"its blocks still cached", Preempt::recompute, false},
                {"parked", Preempt::park, false}};
    for (const auto& way : ways) {
      r.cache().clear(true);
      TRY(Sequence s, r.open_sequence(length_));
      r.cache().attach(s, std::span(prompt_).first(half));
      TRY([[maybe_unused]] const LogitTable head,
          extend(r, s, std::span(prompt_).first(half), half));
      r.cache().preempt(s, way.how);
      if (way.blocks_lost) r.cache().clear(true);
      TRY(Sequence other, r.empty_sequence(length_));  // somebody uses the room meanwhile
      TRY([[maybe_unused]] const LogitTable ignored, extend(r, other, text_like(r, 40, 9), 40));
      r.cache().attach(s);
      const std::uint32_t resumed = s.length();
      const bool as_meant = way.blocks_lost ? resumed == 0 : resumed > 0;
      TRY(const LogitTable got, extend(r, s, prompt_, length_));
      same(fmt::format("preempted at {}, {}, resumed at {}", half, way.name, resumed), got, resumed,
           as_meant ? "" : "resumed elsewhere");
    }
    return {};
  }

  // Beams that step together, part, end, and are forked again from the one that follows the prompt.
  Status beams(Runtime& r) {
    constexpr std::uint32_t kWidth = 4, kRounds = 6, kSteps = 5;
    const std::uint32_t start = length_ - std::min(length_ - 1, kRounds * kSteps);
    r.cache().clear(true);
    TRY(Sequence mine, r.empty_sequence(length_));
    TRY([[maybe_unused]] const LogitTable head,
        extend(r, mine, std::span(prompt_).first(start), start));
    LogitTable got(length_);
    const std::vector<TokenId> stray = text_like(r, kWidth * length_, 11);
    std::vector<Sequence> others(kWidth - 1);
    for (std::uint32_t at = start; at < length_; ++at) {
      if ((at - start) % kSteps == 0)
        for (Sequence& other : others) {
          TRY(other, r.cache().fork(mine));
        }
      std::vector<StepItem> items;
      for (std::size_t i = 0; i < others.size(); ++i)
        items.push_back({&others[i], {&stray[i * length_ + at], 1}, Logits::last});
      items.insert(items.begin() + 1, {&mine, {&prompt_[at], 1}, Logits::last});
      TRY(const std::span<float> logits, stepper_->run(items));
      got[at] = fingerprint(row(logits, 1));
    }
    same(fmt::format("among {} beams forked from it", kWidth - 1), got, start);
    return {};
  }

  // Sequences that begin with the same blocks, long enough that attention reads these once for all.
  Status side_by_side(Runtime& r) {
    constexpr std::uint32_t kWidth = 5;
    const std::vector<TokenId> prompt = text_like(r, std::min(r.context() / 2, 600u), 11);
    const auto length = static_cast<std::uint32_t>(prompt.size());
    r.cache().clear(true);
    TRY(Sequence s, r.empty_sequence(length + 3));
    for (std::uint32_t at = 0; at < length; at = s.length()) {
      const std::uint32_t count = std::min(r.executor().traits().rows_max, length - at);
      const StepItem part{&s, std::span(prompt).subspan(at, count), Logits::none};
      TRY([[maybe_unused]] const std::span<float> none, stepper_->run({&part, 1}));
    }
    std::vector<Sequence> alone(kWidth), together(kWidth);
    const std::vector<TokenId> next = text_like(r, 2 * kWidth, 12);
    std::vector<std::uint64_t> wanted;
    std::vector<StepItem> items;
    for (std::uint32_t i = 0; i < kWidth; ++i) {
      TRY(alone[i], r.cache().fork(s));
      TRY(together[i], r.cache().fork(s));
      // One token or several: a step that makes answers and reads a prompt.
      const auto tokens = std::span(next).subspan(i, 1 + i % 3);
      items.push_back({&together[i], tokens, Logits::last});
      const StepItem one{&alone[i], tokens, Logits::last};
      TRY(const std::span<float> logits, stepper_->run({&one, 1}));
      wanted.push_back(fingerprint(row(logits, 0)));
    }
    TRY(const std::span<float> logits, stepper_->run(items));
    SelftestCheck check{
        .name = prefix_ + fmt::format("beside {} others over one prefix", kWidth - 1),
        .ok = true,
        .compared = std::uint64_t{kWidth} * vocabulary_};
    for (std::uint32_t i = 0; i < kWidth; ++i)
      check.ok = check.ok && wanted[i] != 0 && fingerprint(row(logits, i)) == wanted[i];
    tell(check);
    return {};
  }

  // Other thread counts and instruction sets.
  Status variants(RuntimeOptions options) {
    const std::uint32_t base_threads = options.threads;
    for (const std::uint32_t threads : {1u, 2u, 3u, 4u}) {
      options.threads = threads;
      TRY_STATUS(
          variant(options, fmt::format("{} thread{}", threads, threads == 1 ? "" : "s"), length_));
    }
    options.threads = base_threads;
    for (const Isa isa : kIsas) {
      if (!cpu_has(isa) || isa == options.isa) continue;
      RuntimeOptions other = options;
      other.isa = isa;
      // The scalar reference is slow: fewer positions.
      const std::uint32_t positions =
          isa == Isa::scalar ? std::min(length_, all_ ? 24u : 12u) : length_;
      TRY_STATUS(variant(other, fmt::format("{} kernels", isa_name(isa)), positions));
    }
    return {};
  }

  Status variant(const RuntimeOptions& options, const std::string& name, std::uint32_t positions) {
    TRY(const std::unique_ptr<Runtime> runtime, Runtime::open(path_, options));
    stepper_.emplace(*runtime);
    const auto prompt = std::span(prompt_).first(positions);
    TRY(LogitTable got, compute(*runtime, prompt, positions));
    same(name, got, 0, "", positions);
    TRY(const std::uint64_t adapted,
        adapters_fingerprint(*runtime, std::span(prompt_).first(kAdaptedPositions)));
    tell({.name = prefix_ + "adapters, " + name,
          .ok = adapted == adapted_,
          .compared = std::uint64_t{kAdaptedPositions} * vocabulary_,
          .detail = adapted == adapted_ ? "" : "another answer"});
    return {};
  }

  void same(const std::string& name, const LogitTable& got, std::uint32_t from = 0,
            std::string detail = "", std::uint32_t until = 0) {
    until = until ? until : length_;
    SelftestCheck check{.name = prefix_ + name, .ok = detail.empty(), .detail = std::move(detail)};
    check.compared = std::uint64_t{until - from} * vocabulary_;
    for (std::uint32_t p = from; p < until && check.ok; ++p) {
      check.ok = got[p] == reference_[p] && got[p] != 0;
      if (!check.ok)
        check.detail = fmt::format("position {}{}", p, got[p] == 0 ? " is not finite" : "");
    }
    tell(check);
  }

  void not_tried(std::string name, std::string why) {
    report_({.name = std::move(name), .ok = true, .tried = false, .detail = std::move(why)});
  }

  void tell(const SelftestCheck& check) {
    all_same_ = all_same_ && check.ok;
    report_(check);
  }

  std::span<const float> row(std::span<const float> logits, std::size_t i) const {
    return logits.subspan(i * vocabulary_, vocabulary_);
  }

  const std::string path_;
  RuntimeOptions base_;
  std::optional<Stepper> stepper_;  // of the runtime at hand
  const bool all_, format_given_;
  const std::function<void(const SelftestCheck&)>& report_;
  std::uint32_t vocabulary_ = 0, length_ = 0;
  std::string prefix_;
  std::vector<TokenId> prompt_;
  LogitTable reference_;
  std::uint64_t adapted_ = 0;
  bool all_same_ = true, sample_ = false, opened_ = false;
};

}  // namespace

Result<bool> selftest(const std::string& path, const RuntimeOptions& base, bool all,
                      const std::function<void(const SelftestCheck&)>& report) {
  return Selftest(path, base, all, report).run();
}

}  // namespace quire
