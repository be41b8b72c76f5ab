// The whole server in one process on a tiny model: what threads share is used from all of them, so
// that the sanitizers see it.
#include "server/server.h"

#include <gtest/gtest.h>

#include <thread>

#include "engine/testing.h"
#include "net/testing.h"

namespace quire {
namespace {

class ServerTest : public ::testing::Test {
 protected:
  std::unique_ptr<Server> start(ServiceOptions service_options = {}) {
    auto runtime = Runtime::open(file_.path(),
                                 {.threads = 2, .tokens_per_block = 16, .kv_cache_bytes = 4 << 20});
    EXPECT_TRUE(runtime.ok());
    auto service = Service::start(std::move(runtime.value()), std::move(service_options));
    EXPECT_TRUE(service.ok());
    ServerOptions options;
    options.models = {"m"};
    options.model_path = file_.path();
    auto server = Server::start(std::move(service.value()), std::move(options));
    EXPECT_TRUE(server.ok());
    return std::move(server.value());
  }
  static std::string body(int tokens, bool stream, int seed = 0) {
    return dump({{"model", "m"},
                 {"prompt", "once upon a time there was a server " + std::to_string(seed % 3)},
                 {"max_tokens", tokens},
                 {"ignore_eos", true},
                 {"temperature", 1},
                 {"seed", seed},
                 {"stream", stream}});
  }
  // The text of a whole answer.
  static std::string text_of(const std::string& response) {
    const auto json = parse_json(std::string_view(response).substr(response.find("\r\n\r\n") + 4));
    EXPECT_TRUE(json.ok()) << response;
    return json.value()["choices"][0]["text"].get<std::string>();
  }
  static void wait_until(const std::function<bool()>& what) {
    for (int i = 0; i < 3000 && !what(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_TRUE(what());
  }

  TinyFile file_{TinyOptions{.layers = 2, .context = 1024}};
};

TEST_F(ServerTest, AnswersAreTheSameAloneAndInACrowd) {
  auto server = start();
  std::vector<std::string> alone(12), crowd(12);
  const auto ask = [&](int i) {
    RawClient client(server->port());
    const std::string text = body(12, false, i);
    client.send("POST /v1/completions HTTP/1.0\r\nContent-Length: " + std::to_string(text.size()) +
                "\r\n\r\n" + text);
    return text_of(client.read_all());
  };
  for (int i = 0; i < 12; ++i) alone[i] = ask(i);
  std::vector<std::thread> threads;
  for (int i = 0; i < 12; ++i) threads.emplace_back([&, i] { crowd[i] = ask(i); });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(crowd, alone);
}

TEST_F(ServerTest, ClientsThatLeaveFreeTheirRequests) {
  auto server = start();
  for (int i = 0; i < 10; ++i) {
    RawClient client(server->port());
    client.post("/v1/completions", body(800, i % 2 == 0, i));
    if (i % 4 == 0) client.read_to("data: ");  // some of those that stream
  }
  wait_until([&] { return server->idle(); });
  EXPECT_EQ(server->service().snapshot().requests_running, 0u);
}

TEST_F(ServerTest, CacheIsLookedAtWhileAnswersAreMade) {
  auto server = start();
  RawClient busy(server->port()), events(server->port());
  busy.post("/v1/completions", body(300, true));
  events.send("GET /v1/kv/events?since=0 HTTP/1.1\r\nHost: localhost\r\n\r\n");
  for (const char* path : {"/v1/kv/stats", "/v1/kv/tree", "/v1/kv/requests", "/v1/kv/pins",
                           "/slots", "/load", "/metrics", "/", "/props", "/v1/models"}) {
    RawClient client(server->port());
    client.send("GET " + std::string(path) + " HTTP/1.0\r\n\r\n");
    EXPECT_TRUE(client.read_all().starts_with("HTTP/1.1 200 ")) << path;
  }
  EXPECT_NE(events.read_to("event: ").find("id: "), std::string::npos);
  EXPECT_TRUE(busy.read_to("[DONE]").ends_with("[DONE]"));
}

TEST_F(ServerTest, DrainFinishesWhatRunsAndRefusesTheRest) {
  auto server = start();
  RawClient running(server->port()), events(server->port());
  running.post("/v1/completions", body(200, true));
  events.send("GET /v1/kv/events HTTP/1.1\r\nHost: localhost\r\n\r\n");
  running.read_to("data: ");
  events.read_to("ready");
  server->drain();
  RawClient late(server->port());
  late.post("/v1/completions", body(5, false));
  EXPECT_TRUE(late.read_all().starts_with("HTTP/1.1 503 "));
  EXPECT_TRUE(running.read_to("[DONE]").ends_with("[DONE]"));
  wait_until([&] { return server->idle(); });
}

TEST_F(ServerTest, StopTellsStreamsThatTheyFailed) {
  auto server = start();
  RawClient running(server->port());
  running.post("/v1/completions", body(900, true));
  running.read_to("data: ");
  server->stop();
  const std::string rest = running.read_all();
  // It may have been done just before; what it never does is to end without a word.
  EXPECT_TRUE(rest.find("\"error\"") != rest.npos ||
              rest.find("\"finish_reason\":\"length\"") != rest.npos);
  EXPECT_NE(rest.find("[DONE]"), rest.npos);
}

}  // namespace
}  // namespace quire
