// server/answer_format/harmony.cc - gpt-oss: an answer is several messages, each with a header
// (<|channel|>analysis, or commentary to=functions.f) and a text behind <|message|>. Format: OpenAI's
// "Harmony response format" (cookbook.openai.com/articles/openai-harmony).
//
// What is said in the channel `analysis` is reasoning, a message to a recipient is a call, and everything
// else is content.
#include <algorithm>

#include "server/answer_format/answer_format.h"

namespace quire {
namespace {

constexpr std::string_view kStart = "<|start|>", kChannel = "<|channel|>", kMessage = "<|message|>";
constexpr std::string_view kHarmonyMarks[] = {kStart,    kChannel,   kMessage,    "<|constrain|>",
                                              "<|end|>", "<|call|>", "<|return|>"};
constexpr std::string_view kMessageEnds[] = {"<|end|>", "<|call|>", "<|return|>", kStart, kChannel};
constexpr std::string_view kHeaderBegins[] = {kStart, kChannel, "to=", "<|constrain|>"};
constexpr std::size_t kHeaderBytesMax = 512;

class HarmonyReader final : public CallReader {
 public:
  explicit HarmonyReader(bool calls) : calls_(calls) {}
  bool reasoning() const override { return inside_ && body_ == Body::reasoning; }

 private:
  enum class Body : std::uint8_t { content, reasoning, call };

  void read(bool last) override {
    for (bool more = true; more;) more = inside_ ? read_body(last) : read_header(last);
  }

  bool read_header(bool last) {
    if (first_) {  // an answer that has no header is content
      const std::size_t start = std::min(input_.find_first_not_of(kBlanks), input_.size());
      lead_.append(input_, 0, start);
      input_.erase(0, start);
      const int mark = mark_at(kHeaderBegins, input_);
      if (mark == kNoMark || (last && mark == kMayBegin)) {
        input_.insert(0, std::exchange(lead_, {}));
        begin(Body::content);
        return true;
      }
      if (mark == kMayBegin) return false;
    }
    const std::string_view header = std::string_view(input_).substr(0, kHeaderBytesMax);
    const std::size_t end = header.find(kMessage);
    if (end != header.npos) {
      const std::string text(header.substr(0, end));
      input_.erase(0, end + kMessage.size());
      take_header(text);
      return true;
    }
    if (header.size() == kHeaderBytesMax) {  // no header is so long
      begin(Body::content);
      return true;
    }
    if (last) input_.clear();
    return false;
  }

  void take_header(std::string_view header) {
    std::string_view recipient, channel;
    const auto word_after = [&](std::string_view mark) {
      const std::size_t at = header.find(mark);
      if (at == header.npos) return std::string_view();
      const std::string_view rest = header.substr(at + mark.size());
      return rest.substr(0, rest.find_first_of(" \t\r\n<"));
    };
    recipient = word_after("to=");
    channel = word_after(kChannel);
    if (recipient.starts_with("functions.")) recipient.remove_prefix(10);
    if (calls_ && !recipient.empty() && recipient != "user" && recipient != "all") {
      begin(Body::call);
      begin_call(recipient);
      argued_ = false;
    } else {
      begin(channel == "analysis" ? Body::reasoning : Body::content);
    }
  }

  void begin(Body body) {
    inside_ = true;
    first_ = false;
    body_ = body;
    fresh_ = true;
  }

  bool read_body(bool last) {
    std::size_t end = input_.npos, keep = 0;
    std::string_view mark;
    for (const std::string_view m : kMessageEnds) {
      const std::size_t at = input_.find(m);
      if (at < end) {
        end = at;
        mark = m;
      }
      keep = std::max(keep, beginning_of(m, input_));
    }
    if (mark.empty()) end = input_.size() - (last ? 0 : keep);
    pass(std::string_view(input_).substr(0, end));
    input_.erase(0, end);
    if (mark.empty()) {
      if (last) end_body();
      return false;
    }
    end_body();
    inside_ = false;
    if (mark != kStart && mark != kChannel) input_.erase(0, mark.size());
    return true;
  }

  void pass(std::string_view text) {
    if (text.empty()) return;
    if (body_ == Body::call) {
      argued_ = true;
      return argue(text);
    }
    bool& before = body_ == Body::reasoning ? thought_ : said_;
    const ToolPiece::Kind kind =
        body_ == Body::reasoning ? ToolPiece::Kind::reasoning : ToolPiece::Kind::content;
    if (fresh_ && before) tell(kind, "\n");  // between two messages of a kind
    fresh_ = false;
    before = true;
    tell(kind, text);
  }

  void end_body() {
    if (body_ == Body::call && !argued_) argue("{}");
    argued_ = true;
  }

  const bool calls_;  // otherwise a message to a function is content
  bool first_ = true, inside_ = false, fresh_ = false;
  bool said_ = false, thought_ = false, argued_ = true;
  Body body_ = Body::content;
};

constexpr std::string_view kHarmonyAliases[] = {"harmony", "gpt_oss"},
                           kHarmonyTemplates[] = {"<|channel|>analysis", "<|channel|>commentary"};

}  // namespace

extern const CallFormat kHarmonyCalls = {
    .name = "openai",
    .aliases = kHarmonyAliases,
    .templates = kHarmonyTemplates,
    .marks = kHarmonyMarks,
    .reader = [](const Json& tools) -> std::unique_ptr<CallReader> {
      return std::make_unique<HarmonyReader>(!tools.is_null());
    }};

}  // namespace quire
