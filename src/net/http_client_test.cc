#include "net/http_client.h"

#include <gtest/gtest.h>

#include <map>

#include "net/http_server.h"

namespace quire {
namespace {

// Answers GET with "got", POST with what was posted, and leaves /slow without an answer. /close ends
// the connection after its answer.
class Echo {
 public:
  Echo() {
    server_ = std::move(HttpServer::start({}, [this](std::shared_ptr<Exchange> x) {
                          if (x->request().path == "/slow") return waiting_.push_back(x);
                          const bool post = x->request().method == "POST";
                          x->respond({.body = post ? x->request().body : "got",
                                      .close = x->request().path == "/close"});
                        }).value());
  }
  ~Echo() { server_.reset(); }
  Endpoint endpoint() const {
    return Endpoint::from_url("http://127.0.0.1:" + std::to_string(server_->port())).value();
  }
  std::uint64_t connections() const { return server_->counters().connections_total; }

 private:
  std::vector<std::shared_ptr<Exchange>> waiting_;
  std::unique_ptr<HttpServer> server_;
};

struct Endings final : HttpClient::Listener {
  void event(std::uint64_t, Nanoseconds, std::string_view) override {}
  void end(std::uint64_t request, Nanoseconds, const HttpEnding& e) override { by_id[request] = e; }
  std::map<std::uint64_t, HttpEnding> by_id;
};

void finish(HttpClient& client) {
  while (client.in_flight() > 0) client.poll(100);
}

TEST(HttpClient, ManyRequestsAtOnceEachGetTheirOwnAnswer) {
  Echo echo;
  Endings endings;
  HttpClient client(echo.endpoint(), endings);
  for (std::uint64_t i = 0; i < 20; ++i) client.post(i, "/x", std::to_string(i));
  finish(client);
  ASSERT_EQ(endings.by_id.size(), 20u);
  for (const auto& [id, ending] : endings.by_id) {
    EXPECT_EQ(ending.error, "");
    EXPECT_EQ(ending.body, std::to_string(id));
  }
}

TEST(HttpClient, AConnectionIsUsedAgainUntilThePeerClosesIt) {
  Echo echo;
  Endings endings;
  HttpClient client(echo.endpoint(), endings);
  for (std::uint64_t i = 0; i < 3; ++i) {
    client.get(i, i == 1 ? "/close" : "/x");
    finish(client);
    EXPECT_EQ(endings.by_id[i].body, "got") << i;
    EXPECT_EQ(echo.connections(), i < 2 ? 1u : 2u);
  }
}

TEST(HttpClient, SilenceEndsWhenItsTimeIsOver) {
  Echo echo;
  Endings endings;
  HttpClient client(echo.endpoint(), endings);
  client.get(1, "/slow");
  while (client.in_flight() > 0) {
    client.poll(10);
    client.expire(50'000'000);
  }
  EXPECT_NE(endings.by_id[1].error.find("no answer within"), std::string::npos);
  EXPECT_EQ(endings.by_id[1].status, 0);
}

TEST(HttpClient, WhereNobodyListensTheErrorNamesTheServer) {
  const Endpoint nobody = [] { return Echo().endpoint(); }();  // its server is gone
  const auto answer = http_fetch(nobody, "/x", "");
  ASSERT_FALSE(answer.ok());
  EXPECT_NE(answer.error().message.find(nobody.host), std::string::npos);
  EXPECT_NE(answer.error().message.find("refused"), std::string::npos) << answer.error().message;
}

TEST(Endpoint, UrlsAreTakenWithAndWithoutV1) {
  for (const char* url : {"http://127.0.0.1:8080", "http://127.0.0.1:8080/",
                          "http://127.0.0.1:8080/v1", "http://127.0.0.1:8080/v1/"})
    EXPECT_EQ(Endpoint::from_url(url).value().path("/models"), "/v1/models") << url;
  EXPECT_EQ(Endpoint::from_url("http://127.0.0.1/a/v1").value().path("/x"), "/a/v1/x");
  EXPECT_EQ(Endpoint::from_url("http://[::1]:9").value().host, "[::1]:9");
  for (const char* bad : {"127.0.0.1:80", "https://127.0.0.1", "http://", "http://127.0.0.1:x"})
    EXPECT_FALSE(Endpoint::from_url(bad).ok()) << bad;
}

}  // namespace
}  // namespace quire
