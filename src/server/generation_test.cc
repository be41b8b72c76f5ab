// A dialect that speaks in lines, says when its prompts are admitted, and ends with an empty line: what
// no vendor's is yet, through a real engine on a tiny model.
#include "server/generation.h"

#include <gtest/gtest.h>

#include <condition_variable>

#include "engine/testing.h"

namespace quire {
namespace {

class LineWriter final : public AnswerWriter {
 public:
  std::string id() const override { return "line-1"; }
  std::vector<HttpHeader> headers(Nanoseconds) const override { return {{"x-lines", "yes"}}; }
  HttpResponse stream_head() const override {
    return {.headers = {{"Content-Type", "application/x-ndjson"}}};
  }
  std::string begin(const Usage& so_far) override {
    return "admitted " + std::to_string(so_far.prompt) + "\n";
  }
  std::string piece(const AnswerPiece& piece, const std::vector<PromptInfo>&,
                    const Usage&) override {
    return piece.finish ? "last\n" : "piece\n";
  }
  std::string end(const Usage& usage, const Json&) override {
    return "end " + std::to_string(usage.completion) + "\n\n";
  }
  std::string failure(const ApiError& error) override { return "failed " + error.code + "\n"; }
  Json whole(const std::vector<WholeAnswer>& answers, const std::vector<PromptInfo>&,
             const Usage& usage, const Json&) override {
    return {{"answers", answers.size()}, {"tokens", usage.completion}};
  }
};

HttpResponse line_error(const ApiError& error, std::string_view request_id) {
  return {.status = error.status, .body = std::string(request_id) + " " + error.code};
}
constexpr Dialect kLines = {.name = "lines", .error = line_error};

// Keeps what it is given; posted functions run on the thread that waits.
class KeptExchange final : public Exchange {
 public:
  void post(std::function<void()> function) override {
    {
      std::lock_guard lock(mutex_);
      posted_.push_back(std::move(function));
    }
    changed_.notify_one();
  }
  void respond(HttpResponse response) override {
    head_ = std::move(response);
    over_ = true;
  }
  void begin(HttpResponse head) override {
    head_ = std::move(head);
    began_ = true;
  }
  bool write(std::string_view bytes) override {
    text_ += bytes;
    return true;
  }
  void end() override { over_ = true; }
  bool began() const override { return began_; }
  bool over() const override { return over_; }
  std::uint64_t bytes_sent() const override { return text_.size(); }

  void wait_until(const std::function<bool()>& what) {
    while (!what()) {
      std::function<void()> next;
      {
        std::unique_lock lock(mutex_);
        ASSERT_TRUE(
            changed_.wait_for(lock, std::chrono::minutes(1), [&] { return !posted_.empty(); }));
        next = std::move(posted_.front());
        posted_.pop_front();
      }
      next();
    }
  }
  std::string header(std::string_view name) const {
    for (const HttpHeader& h : head_.headers)
      if (h.name == name) return h.value;
    return {};
  }

  HttpResponse head_;
  std::string text_;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> posted_;
  bool began_ = false, over_ = false;
};

class GenerationTest : public ::testing::Test {
 protected:
  // One answer of four tokens, as its client sees it.
  KeptExchange& answer(bool stream, std::size_t prompt_tokens = 6) {
    GenerationStart start;
    start.asked.stream = stream;
    start.asked.tokens_max = 4;
    start.asked.ignore_eos = true;
    start.asked.prompt_field = "lines";
    start.prompts = {{.tokens = std::vector<TokenId>(prompt_tokens, 'a')}};
    start.requests.push_back(
        make_request(start.asked, start.prompts[0], service_->runtime(), "req_7"));
    start.dialect = &kLines;
    start.writer = std::make_unique<LineWriter>();
    start.request_id = "req_7";
    start.ended = [&](const GenerationSummary& s) { summary_ = s; };
    std::make_shared<Generation>(*service_, doorbell_, exchange_, std::move(start))->submit();
    exchange_->wait_until([&] { return summary_.has_value(); });
    exchange_->gone = exchange_->drained = nullptr;
    return *exchange_;
  }

  std::shared_ptr<KeptExchange> exchange_ = std::make_shared<KeptExchange>();
  Doorbell doorbell_{[this](std::function<void()> f) { exchange_->post(std::move(f)); }};
  std::optional<GenerationSummary> summary_;
  TinyFile file_{TinyOptions{.layers = 2, .context = 128}};
  // Last: its thread rings the doorbell.
  std::unique_ptr<Service> service_ = std::move(
      Service::start(std::move(Runtime::open(file_.path(), {.threads = 1}).value()), {}).value());
};

TEST_F(GenerationTest, AStreamIsWhatTheWriterMakesOfIt) {
  const KeptExchange& seen = answer(true);
  EXPECT_EQ(seen.header("Content-Type"), "application/x-ndjson");
  EXPECT_EQ(seen.header("x-lines"), "yes");
  EXPECT_EQ(seen.header("x-kv-prompt-tokens"), "6");
  EXPECT_TRUE(seen.text_.starts_with("admitted 6\npiece\n")) << seen.text_;
  EXPECT_TRUE(seen.text_.ends_with("last\nend 4\n\n")) << seen.text_;
  EXPECT_EQ(summary_->response_id, "line-1");
}

TEST_F(GenerationTest, AWholeAnswerIsOneBody) {
  const KeptExchange& seen = answer(false);
  EXPECT_EQ(seen.head_.body, R"({"answers":1,"tokens":4})");
  EXPECT_EQ(seen.header("x-lines"), "yes");
  EXPECT_EQ(seen.text_, "");
}

TEST_F(GenerationTest, AnErrorBeforeTheFirstByteLooksAsTheDialectSays) {
  const KeptExchange& seen = answer(true, 500);
  EXPECT_EQ(seen.head_.status, 400);
  EXPECT_EQ(seen.head_.body, "req_7 context_length_exceeded");
  EXPECT_FALSE(seen.began());
}

}  // namespace
}  // namespace quire
