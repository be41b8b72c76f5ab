#include "net/local_exchange.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <thread>

#include "net/http_server.h"

namespace quire {
namespace {

class LocalExchanges : public testing::Test {
 protected:
  LocalExchanges() {
    auto started = HttpServer::start({.listen = false}, [](std::shared_ptr<Exchange>) {});
    EXPECT_TRUE(started.ok());
    server_ = std::move(started.value());
  }
  std::shared_ptr<LocalExchange> make() {
    return std::make_shared<LocalExchange>(
        HttpRequest{.method = "GET", .path = "/x"},
        [this](std::function<void()> f) { server_->post(std::move(f)); }, 100);
  }
  bool readable(const LocalExchange& x, int milliseconds) {
    pollfd p{.fd = x.descriptor(), .events = POLLIN, .revents = 0};
    return ::poll(&p, 1, milliseconds) == 1;
  }
  std::unique_ptr<HttpServer> server_;
};

TEST_F(LocalExchanges, AWholeAnswerIsReadOnce) {
  EXPECT_EQ(server_->port(), 0);
  const auto x = make();
  int told = 0;
  x->answered = [&](int status) { told = status; };
  x->post([x] { x->respond({.status = 404, .body = "none"}); });
  EXPECT_EQ(x->status(), 404);
  std::string bytes;
  EXPECT_TRUE(x->read(bytes));
  EXPECT_EQ(bytes, "none");
  EXPECT_FALSE(x->read(bytes));
  EXPECT_EQ(told, 404);
  EXPECT_TRUE(x->over());
}

TEST_F(LocalExchanges, ADescriptorSaysWhenThereIsSomethingToRead) {
  const auto x = make();
  std::string bytes;
  EXPECT_FALSE(readable(*x, 0));
  EXPECT_FALSE(x->try_read(bytes));
  x->post([x] {
    x->begin({});
    x->write("one");
  });
  EXPECT_TRUE(readable(*x, 20'000));
  EXPECT_TRUE(x->try_read(bytes));
  EXPECT_EQ(bytes, "one");
  EXPECT_FALSE(readable(*x, 0));
  x->post([x] { x->end(); });
  EXPECT_TRUE(readable(*x, 20'000));
  EXPECT_TRUE(x->try_read(bytes));
  EXPECT_EQ(bytes, "");
  EXPECT_TRUE(readable(*x, 0)) << "the end stays readable";
}

TEST_F(LocalExchanges, AWriterWaitsForASlowReader) {
  const auto x = make();
  std::atomic<int> written = 0, drained = 0;
  auto fill = [&, x] {
    while (written < 50) {
      ++written;
      if (!x->write(std::string(40, 'a'))) return;
    }
    x->end();
  };
  x->drained = [&] {
    ++drained;
    fill();
  };
  x->post([x, fill] {
    x->begin({});
    fill();
  });
  std::string bytes;
  std::size_t got = 0;
  while (x->read(bytes)) {
    EXPECT_LE(bytes.size(), 140u);
    got += bytes.size();
  }
  EXPECT_EQ(got, 2000u);
  EXPECT_GT(drained, 3);
}

TEST_F(LocalExchanges, AReaderWhoLeavesIsGone) {
  const auto x = make();
  std::atomic<bool> gone = false;
  x->gone = [&] { gone = true; };
  x->leave();
  for (int i = 0; i < 2000 && !gone; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_TRUE(gone);
  std::string bytes;
  EXPECT_FALSE(x->read(bytes));
  EXPECT_EQ(x->status(), 0);
  x->post([x] { x->respond({.body = "late"}); });
  server_->stop();
  EXPECT_FALSE(x->began());
}

}  // namespace
}  // namespace quire
