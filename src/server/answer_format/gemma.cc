// server/answer_format/gemma.cc - FunctionGemma and Gemma 4: call:name{key:<escape>text<escape>,n:1}.
// Formats: ai.google.dev/gemma/docs/functiongemma/formatting-and-best-practices, and the chat template of
// Gemma 4, where <|"|> quotes.
#include <cctype>

#include "server/answer_format/answer_format.h"
#include "server/answer_format/block_calls.h"

namespace quire {
namespace {

constexpr int kGemmaDepthMax = 64;

class GemmaReader {
 public:
  explicit GemmaReader(std::string_view text) : text_(text) {}

  bool call(ReadCall& out) {
    if (!take("call:")) return false;
    const std::size_t brace = text_.find('{', at_);
    if (brace == text_.npos || brace == at_) return false;
    out.name = text_.substr(at_, brace - at_);
    at_ = brace;
    if (out.name.find_first_of(kBlanks) != out.name.npos) return false;
    if (!object(out.arguments, 0)) return false;
    blanks();
    return at_ == text_.size();
  }

 private:
  void blanks() {
    while (at_ < text_.size() && kBlanks.find(text_[at_]) != kBlanks.npos) ++at_;
  }
  bool take(std::string_view mark) {
    blanks();
    if (!text_.substr(at_).starts_with(mark)) return false;
    at_ += mark.size();
    return true;
  }

  bool object(Json& out, int depth) {
    out = Json::object();
    if (!take("{")) return false;
    while (!take("}")) {
      std::string key;
      if (out.size() >= kArgumentsMax) return false;
      if (quoted(key)) {
        if (!take(":")) return false;
      } else {
        const std::size_t colon = text_.find(':', at_);
        if (colon == text_.npos) return false;
        key = text_.substr(at_, colon - at_);
        at_ = colon + 1;
      }
      if (!value(out[key], depth + 1)) return false;
      if (!take(",")) return take("}");
    }
    return true;
  }

  bool list(Json& out, int depth) {
    out = Json::array();
    if (!take("[")) return false;
    while (!take("]")) {
      Json item;
      if (!value(item, depth + 1)) return false;
      out.push_back(std::move(item));
      if (!take(",")) return take("]");
    }
    return true;
  }

  bool value(Json& out, int depth) {
    blanks();
    if (depth > kGemmaDepthMax || at_ == text_.size()) return false;
    if (std::string s; quoted(s)) {
      out = std::move(s);
      return true;
    }
    if (text_[at_] == '{') return object(out, depth);
    if (text_[at_] == '[') return list(out, depth);
    const std::size_t end = text_.find_first_of(",}]", at_);
    if (end == text_.npos) return false;
    std::string_view word = text_.substr(at_, end - at_);
    while (!word.empty() && kBlanks.find(word.back()) != kBlanks.npos) word.remove_suffix(1);
    at_ = end;
    auto parsed = parse_json(word, kRequestJson);
    out = parsed.ok() ? std::move(parsed.value()) : Json(std::string(word));
    return true;
  }

  bool quoted(std::string& out) {
    for (const std::string_view quote : {"<escape>", "<|\"|>"}) {
      if (!take(quote)) continue;
      const std::size_t end = text_.find(quote, at_);
      if (end == text_.npos) return false;
      out = text_.substr(at_, end - at_);
      at_ = end + quote.size();
      return true;
    }
    return false;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

bool parse_gemma(std::string_view block, const Json&, std::vector<ReadCall>& calls) {
  ReadCall call;
  if (!GemmaReader(block).call(call)) return false;
  calls.push_back(std::move(call));
  return true;
}

constexpr BlockMarks kGemmaBlocks[] = {{"<start_function_call>", "<end_function_call>"},
                                       {"<|tool_call>", "<tool_call|>"}};
constexpr std::string_view kGemmaAliases[] = {"functiongemma", "gemma4"};
constexpr std::string_view kGemmaMarks[] = {
    "<start_function_call>", "<end_function_call>", "<escape>",
    "<|tool_call>",          "<tool_call|>",        "<|\"|>"};
constexpr std::string_view kGemmaTemplates[] = {"<start_function_call>", "<|tool_call>"};

}  // namespace

extern const CallFormat kGemmaCalls = {.name = "gemma",
                                       .aliases = kGemmaAliases,
                                       .templates = kGemmaTemplates,
                                       .marks = kGemmaMarks,
                                       .reader = [](const Json& tools) {
                                         return read_block_calls(
                                             {.marks = kGemmaBlocks, .parse = parse_gemma}, tools);
                                       }};

}  // namespace quire
