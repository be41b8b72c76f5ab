#include "server/prompt_run.h"

namespace quire {
namespace {

class PromptSink final : public RequestSink {
 public:
  PromptSink(std::shared_ptr<Call> call, std::function<void(const Done&)> then)
      : call_(std::move(call)), then_(std::move(then)) {}
  void token(std::uint32_t, const Choice&) override {}
  void finished(std::uint32_t, Finish) override {}
  void done(const Done& done) override {
    call_->exchange->post([then = std::move(then_), done] { then(done); });
  }
  void failed(const Failure& failure) override {
    call_->exchange->post([call = call_, error = from_failure(failure)] { call->refuse(error); });
  }

 private:
  std::shared_ptr<Call> call_;
  std::function<void(const Done&)> then_;
};

}  // namespace

void run_prompt(Server& server, std::shared_ptr<Call> call, Request request,
                std::function<void(const Done&)> then, std::uint32_t tokens_max) {
  request.tokens_max = tokens_max;
  const Submitted s = server.service().submit(std::move(request),
                                              std::make_shared<PromptSink>(call, std::move(then)));
  call->exchange->post([&server, call, s] {
    if (!s.ok()) return call->refuse(from_failure(s.failure));
    if (call->exchange->over()) return server.service().cancel(s.ticket);
    call->exchange->gone = [&server, ticket = s.ticket] { server.service().cancel(ticket); };
  });
}

}  // namespace quire
