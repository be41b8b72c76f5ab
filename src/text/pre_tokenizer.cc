#include "text/pre_tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <string>

#include "base/stop.h"
#include "text/utf8.h"

namespace quire {
namespace {

struct CodeDeleter {
  void operator()(pcre2_code* p) const { pcre2_code_free(p); }
};
struct MatchDeleter {
  void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
};
struct ContextDeleter {
  void operator()(pcre2_match_context* p) const { pcre2_match_context_free(p); }
};
using Code8 = std::unique_ptr<pcre2_code, CodeDeleter>;
using MatchData = std::unique_ptr<pcre2_match_data, MatchDeleter>;

// PCRE2's \s takes U+180E for a space, which Unicode and the models' tokenizers do not.
std::string with_unicode_spaces(std::string_view pattern) {
  std::string out;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '\\' || i + 1 == pattern.size()) {
      out += pattern[i];
      continue;
    }
    const char kind = pattern[++i];
    if (kind == 's')
      out += "\\p{WSpace}";
    else if (kind == 'S')
      out += "\\P{WSpace}";
    else
      out.append({'\\', kind});
  }
  return out;
}

Result<Code8> compile(std::string_view pattern) {
  // As it stands, it tries every place within a run of spaces that does not end the text, and walks
  // to the end of the run from each. The same matches begin where a run begins.
  if (pattern == "\\s+$") pattern = "(?<!\\s)\\s++$";
  const std::string text = with_unicode_spaces(pattern);
  int error = 0;
  PCRE2_SIZE offset = 0;
  Code8 code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                           PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr));
  if (!code)
    return Error{Code::unsupported, "pre-tokenizer pattern does not compile (PCRE2 error " +
                                        std::to_string(error) + "): " + text};
  pcre2_jit_compile(code.get(),
                    PCRE2_JIT_COMPLETE);  // where that is forbidden, matching interprets
  return code;
}

}  // namespace

struct PreTokenizer::Patterns {
  std::vector<Code8> codes;
  std::unique_ptr<pcre2_match_context, ContextDeleter> context{pcre2_match_context_create(nullptr)};

  using Word = std::function<void(std::size_t begin, std::size_t end)>;

  // Cuts [begin, end) of text into matches of pattern `which` and the text between them, and each of
  // these by the patterns after it.
  void split(std::size_t which, pcre2_match_data* match, std::string_view text, std::size_t begin,
             std::size_t end, const Word& found) const {
    if (which == codes.size()) return found(begin, end);
    const Code8& code = codes[which];
    const std::string_view word = text.substr(begin, end - begin);
    const auto subject = reinterpret_cast<PCRE2_SPTR>(word.data());
    const auto part = [&](std::size_t from, std::size_t to) {
      split(which + 1, match, text, begin + from, begin + to, found);
    };
    std::size_t done = 0;
    while (done < word.size() && !stop_asked()) {
      int rc = pcre2_match(code.get(), subject, word.size(), done, PCRE2_NO_UTF_CHECK, match,
                           context.get());
      if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(code.get(), subject, word.size(), done, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                         match, context.get());
      if (rc < 0) break;  // no match; or a limit of PCRE2, which our patterns do not reach
      const PCRE2_SIZE* at = pcre2_get_ovector_pointer(match);
      const std::size_t from = at[0], to = at[1];  // `match` is used again by the patterns after it
      CHECK(to > from);                            // no pattern of ours matches nothing
      if (from > done) part(done, from);
      part(from, to);
      done = to;
    }
    if (done < word.size()) part(done, word.size());
  }
};

Result<PreTokenizer> PreTokenizer::create(std::string_view name) {
  TRY(const PreTokenizerEntry* entry, find_pre_tokenizer(name));
  auto patterns = std::make_unique<Patterns>();
  pcre2_set_match_limit(patterns->context.get(),
                        UINT32_MAX);  // every pattern is linear; long text is not an error
  for (const std::string_view pattern : entry->patterns) {
    TRY(Code8 code, compile(pattern));
    patterns->codes.push_back(std::move(code));
  }
  return PreTokenizer(std::move(patterns));
}

PreTokenizer::PreTokenizer(std::unique_ptr<Patterns> patterns) : patterns_(std::move(patterns)) {}
PreTokenizer::PreTokenizer(PreTokenizer&&) noexcept = default;
PreTokenizer& PreTokenizer::operator=(PreTokenizer&&) noexcept = default;
PreTokenizer::~PreTokenizer() = default;

void PreTokenizer::split(std::string_view text,
                         const std::function<void(std::string_view)>& word) const {
  if (text.empty()) return;
  // PCRE2 wants valid UTF-8: each other byte is shown to it as a control character, in the same
  // place.
  std::string valid;
  std::string_view shown = text;
  if (!utf8_valid(text)) {
    for (std::string_view rest = text; !rest.empty();) {
      const Utf8Step step = utf8_step(rest);
      if (step.kind == Utf8Kind::whole)
        valid.append(rest.substr(0, step.length));
      else
        valid.append(step.length, '\x01');
      rest.remove_prefix(step.length);
    }
    shown = valid;
  }
  const MatchData match(pcre2_match_data_create(1, nullptr));
  CHECK(match != nullptr);
  patterns_->split(0, match.get(), shown, 0, shown.size(), [&](std::size_t begin, std::size_t end) {
    word(text.substr(begin, end - begin));
  });
}

}  // namespace quire
