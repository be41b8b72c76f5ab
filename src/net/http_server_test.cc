#include "net/http_server.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "net/testing.h"

namespace quire {
namespace {

using namespace std::chrono_literals;

struct Client : RawClient {
  explicit Client(const HttpServer& server) : RawClient(server.port()) {}
};

class Flag {
 public:
  void set() {
    std::lock_guard lock(mutex_);
    set_ = true;
    changed_.notify_all();
  }
  bool wait(std::chrono::milliseconds limit = 20s) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, limit, [&] { return set_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool set_ = false;
};

std::unique_ptr<HttpServer> start(HttpServer::Handler handler, HttpServerOptions options = {}) {
  auto server = HttpServer::start(options, std::move(handler));
  EXPECT_TRUE(server.ok());
  return std::move(server.value());
}

void echo(std::shared_ptr<Exchange> x) {
  x->respond({.body = x->request().method + " " + x->request().path + "?" + x->request().query +
                      " " + x->request().body});
}

TEST(HttpServer, ConnectionIsKeptForTheNextRequest) {
  auto server = start(echo);
  Client client(*server);
  for (int i = 0; i < 100; ++i) {
    client.send("GET /a%20b?q=1 HTTP/1.1\r\nHost: x\r\n\r\n");
    EXPECT_NE(client.read_to("GET /a%20b?q=1 ").find("HTTP/1.1 200 OK\r\n"), std::string::npos);
  }
  EXPECT_EQ(server->counters().connections_total, 1u);
  EXPECT_EQ(server->counters().requests_total, 100u);
}

TEST(HttpServer, PipelinedRequestsAreAnsweredInOrder) {
  auto server = start(echo);
  Client client(*server);
  client.send(
      "GET /1 HTTP/1.1\r\nHost: x\r\n\r\nGET /2 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  const std::string all = client.read_all();
  EXPECT_LT(all.find("GET /1?"), all.find("GET /2?"));
  EXPECT_NE(all.find("GET /2?"), std::string::npos);
}

TEST(HttpServer, OldClientGetsNoChunksAndAnEnd) {
  auto server = start([](std::shared_ptr<Exchange> x) {
    x->begin({});
    x->write("one ");
    x->write("two");
    x->end();
  });
  Client client(*server);
  client.send("GET / HTTP/1.0\r\n\r\n");
  const std::string all = client.read_all();
  EXPECT_TRUE(all.ends_with("\r\n\r\none two")) << all;
  EXPECT_EQ(all.find("chunked"), std::string::npos);

  Client newer(*server);
  newer.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_TRUE(newer.read_to("0\r\n\r\n").ends_with("4\r\none \r\n3\r\ntwo\r\n0\r\n\r\n"));
}

TEST(HttpServer, BodyComesWholeChunkedOrAnnounced) {
  auto server = start(echo);
  Client client(*server);
  client.send("POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n");
  EXPECT_EQ(client.read_to("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.send("he");
  client.send("llo");
  EXPECT_TRUE(client.read_to("hello").ends_with("POST /? hello"));
  client.send(
      "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: "
      "chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n");
  EXPECT_TRUE(client.read_to("abcde").ends_with("POST /? abcde"));
  const std::string large(300'000, 'z');
  client.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 300000\r\n\r\n" + large);
  EXPECT_TRUE(client.read_to(large).ends_with(large));
}

TEST(HttpServer, LimitsAreAnsweredAndClosed) {
  auto server = start(echo, {.header_bytes_max = 1024,
                             .body_bytes_max = 1000,
                             .header_timeout = 100ms,
                             .body_timeout = 100ms});
  const auto status = [&](const std::string& bytes) {
    Client client(*server);
    client.send(bytes);
    return client.read_all().substr(0, 12);
  };
  EXPECT_EQ(status("POST / HTTP/1.1\r\nContent-Length: 1001\r\n\r\n"), "HTTP/1.1 413");
  EXPECT_EQ(status("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n7d0\r\n" +
                   std::string(2000, 'x') + "\r\n0\r\n\r\n"),
            "HTTP/1.1 413");
  EXPECT_EQ(status("GET / HTTP/1.1\r\nA: " + std::string(2000, 'x') + "\r\n\r\n"), "HTTP/1.1 431");
  EXPECT_EQ(status("NONSENSE\r\n\r\n"), "HTTP/1.1 400");
  EXPECT_EQ(status("POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n"), "HTTP/1.1 400");
  EXPECT_EQ(status("GET / HTTP/1.1\r\nHost"), "HTTP/1.1 408");
  EXPECT_EQ(status("POST / HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc"), "HTTP/1.1 408");
}

TEST(HttpServer, ChunkExtensionsAndTrailersAreBounded) {
  auto server = start(echo, {.header_bytes_max = 1024});
  const auto status = [&](const std::string& bytes) {
    Client client(*server);
    client.send("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + bytes);
    return client.read_all().substr(0, 12);
  };
  EXPECT_EQ(status("3;" + std::string(200'000, 'x')), "HTTP/1.1 431");
  EXPECT_EQ(status("3\r\nabc\r\n0\r\nA: " + std::string(200'000, 'x')), "HTTP/1.1 431");
  EXPECT_EQ(status("0\r\n" +
                   [] {
                     std::string fields;
                     for (int i = 0; i < 20'000; ++i) fields += "a: b\r\n";
                     return fields;
                   }()),
            "HTTP/1.1 431");
}

// Anything else would be taken for an empty body, and the body for the next request.
TEST(HttpServer, OnlyChunkedIsTakenAsATransferEncoding) {
  auto server = start(echo);
  for (const char* encoding : {"gzip", "gzip, chunked", "chunked, gzip", "identity",
                               "chunked\r\nTransfer-Encoding: chunked"}) {
    Client client(*server);
    client.send(std::string("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: ") + encoding +
                "\r\n\r\nGET /hidden HTTP/1.1\r\nHost: x\r\n\r\n");
    const std::string answers = client.read_all();
    EXPECT_EQ(answers.substr(0, 12), "HTTP/1.1 400") << encoding;
    EXPECT_EQ(answers.find("hidden"), std::string::npos) << encoding;
  }
}

TEST(HttpServer, ARequestIsLookedAtBeforeItsBodyIsRead) {
  std::atomic<int> answered = 0;
  auto server = start(
      [&](std::shared_ptr<Exchange> x) {
        if (x->request().body_unread) return x->respond({.status = 401});
        ++answered;
        echo(x);
      },
      {.admit = [](const HttpRequest& head) { return head.header("x-key") == "right"; }});
  Client stranger(*server);
  stranger.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 30000000\r\n\r\n");
  EXPECT_EQ(stranger.read_all().substr(0, 12), "HTTP/1.1 401");
  EXPECT_EQ(answered, 0);
  Client known(*server);
  known.send("POST / HTTP/1.1\r\nHost: x\r\nx-key: right\r\nContent-Length: 2\r\n\r\nhi");
  EXPECT_TRUE(known.read_to("hi").ends_with("POST /? hi"));
}

TEST(HttpServer, ABodyThatTricklesIsGivenUp) {
  auto server = start(echo, {.body_timeout = 400ms, .body_total_timeout = 600ms});
  Client client(*server);
  client.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n");
  const auto began = std::chrono::steady_clock::now();
  std::thread sender([&] {
    for (int i = 0; i < 20; ++i, std::this_thread::sleep_for(100ms)) client.send_if_open("x");
  });
  EXPECT_EQ(client.read_all().substr(0, 12), "HTTP/1.1 408");
  EXPECT_LT(std::chrono::steady_clock::now() - began, 1800ms);
  sender.join();
}

TEST(HttpServer, TheLargestUnfinishedBodyGivesWay) {
  auto server = start(echo, {.body_bytes_max = 1 << 20, .bodies_bytes_max = 1 << 20});
  const std::string most(700'000, 'x');
  Client large(*server), small(*server);
  large.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 700001\r\n\r\n" + most);
  std::this_thread::sleep_for(200ms);
  small.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 500000\r\n\r\n" +
             most.substr(0, 500'000));
  EXPECT_EQ(small.read_to("\r\n").substr(0, 12), "HTTP/1.1 200");
  EXPECT_EQ(large.read_all().substr(0, 12), "HTTP/1.1 503");
}

TEST(HttpServer, OneAddressCannotTakeAllConnections) {
  auto server = start(echo, {.connections_per_address_max = 2});
  Client a(*server);
  {
    Client b(*server);
    b.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    b.read_to("GET /? ");
    Client c(*server);
    c.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    EXPECT_EQ(c.read_all().substr(0, 12), "HTTP/1.1 503");
  }
  for (int i = 0; i < 100; ++i) {  // those that left make room
    Client d(*server);
    d.send("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    if (d.read_all().starts_with("HTTP/1.1 200")) return;
    std::this_thread::sleep_for(20ms);
  }
  FAIL();
}

TEST(HttpServer, ConnectionBeyondTheLimitIsRefused) {
  auto server = start(echo, {.connections_max = 1});
  Client first(*server);
  first.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  first.read_to("GET /? ");
  Client second(*server);
  second.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(second.read_all().substr(0, 12), "HTTP/1.1 503");
}

TEST(HttpServer, ClientThatLeavesIsNoticedBeforeAnythingIsWritten) {
  Flag arrived, gone;
  auto server = start([&](std::shared_ptr<Exchange> x) {
    x->gone = [&, x] { gone.set(); };  // holds the exchange: must not keep it alive for ever
    arrived.set();
  });
  Client client(*server);
  client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  ASSERT_TRUE(arrived.wait());
  client.close();
  EXPECT_TRUE(gone.wait(250ms));
}

TEST(HttpServer, ClientThatStopsReadingIsDroppedAndTheQueueIsBounded) {
  Flag gone, full;
  std::atomic<std::uint64_t> written{0};
  auto server = start(
      [&](std::shared_ptr<Exchange> x) {
        x->gone = [&] { gone.set(); };
        x->begin({});
        auto pump = std::make_shared<std::function<void()>>();
        *pump = [&, x] {
          const std::string bytes(32 << 10, 'x');
          while (x->write(bytes)) written += bytes.size();
          full.set();
        };
        x->drained = [pump] { (*pump)(); };
        (*pump)();
      },
      {.write_timeout = 200ms});
  Client client(*server);
  client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  ASSERT_TRUE(full.wait());
  EXPECT_TRUE(gone.wait());
  EXPECT_LT(written, 32u << 20);  // what the kernel's buffers take, and no more
  EXPECT_EQ(server->counters().clients_dropped, 1u);
}

TEST(HttpServer, AnswersFromAnotherThreadAndSpeaksWhenIdle) {
  std::thread other;
  auto server = start(
      [&](std::shared_ptr<Exchange> x) {
        x->begin({.idle_text = ": still here\n\n"});
        other = std::thread([x] {
          std::this_thread::sleep_for(120ms);
          x->post([x] {
            x->write("done");
            x->end();
          });
        });
      },
      {.keep_alive_interval = 50ms});
  Client client(*server);
  client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  const std::string all = client.read_to("0\r\n\r\n");
  EXPECT_LT(all.find(": still here\n\n"), all.find("done"));
  EXPECT_NE(all.find("done"), std::string::npos);
  other.join();
}

TEST(HttpServer, StopEndsWhatIsUnderWay) {
  Flag arrived, gone;
  auto server = start([&](std::shared_ptr<Exchange> x) {
    x->gone = [&] { gone.set(); };
    x->begin({});
    arrived.set();
  });
  Client busy(*server), idle(*server);
  busy.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  ASSERT_TRUE(arrived.wait());
  server->stop();
  EXPECT_TRUE(gone.wait(0ms));
  EXPECT_EQ(idle.read_all(), "");
}

TEST(HttpServer, HandlerThatThrowsIsAnInternalError) {
  auto server = start([](std::shared_ptr<Exchange>) { throw std::runtime_error("planted"); });
  Client client(*server);
  client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(client.read_to("\r\n\r\n").substr(0, 12), "HTTP/1.1 500");
}

TEST(HttpServer, TakenPortIsAnErrorThatNamesIt) {
  auto server = start(echo);
  const auto second = HttpServer::start({.port = server->port()}, echo);
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.error().message.find(std::to_string(server->port())), std::string::npos);
}

TEST(HttpServer, HeadHasTheLengthAndNoBody) {
  auto server = start(echo);
  Client client(*server);
  client.send("HEAD / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  const std::string all = client.read_all();
  EXPECT_NE(all.find("Content-Length: 8\r\n"), std::string::npos) << all;
  EXPECT_TRUE(all.ends_with("\r\n\r\n"));
}

TEST(Http, PercentAndQuery) {
  EXPECT_EQ(percent_decode("a%2Fb%zz%4"), "a/b%zz%4");
  HttpRequest r;
  r.query = "a=1&b=x%20y+z&c&a=2";
  EXPECT_EQ(r.parameter("a"), "1");
  EXPECT_EQ(r.parameter("b"), "x y z");
  EXPECT_EQ(r.parameter("c"), "");
  EXPECT_EQ(r.parameter("d"), std::nullopt);
}

}  // namespace
}  // namespace quire
