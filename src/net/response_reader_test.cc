#include "net/response_reader.h"

#include <gtest/gtest.h>

#include <vector>

namespace quire {
namespace {

struct Read {
  ResponseReader reader;
  std::vector<std::string> events;

  explicit Read(const std::string& bytes, std::size_t at_once, bool close = false) {
    const auto keep = [&](std::string_view data) { events.emplace_back(data); };
    for (std::size_t i = 0; i < bytes.size(); i += at_once)
      reader.feed(std::string_view(bytes).substr(i, at_once), keep);
    if (close) reader.end_of_input(keep);
  }
};

const std::string kChunked =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    "Transfer-Encoding: chunked\r\n\r\n"
    "6\r\ndata: \r\n3;x=1\r\none\r\n2\r\n\n\n\r\n"
    "1b\r\n: note\ndata: a\ndata: b\r\n\r\n\r\n0\r\nTrailer: 1\r\n\r\n";

TEST(ResponseReader, EventsDoNotDependOnHowBytesArrive) {
  for (std::size_t at_once = 1; at_once <= kChunked.size(); ++at_once) {
    const Read read(kChunked, at_once);
    ASSERT_EQ(read.reader.state(), ResponseReader::State::done) << at_once;
    EXPECT_EQ(read.events, (std::vector<std::string>{"one", "a\nb"})) << at_once;
    EXPECT_TRUE(read.reader.keep_alive());
  }
}

TEST(ResponseReader, BodyOfAGivenLengthIsCollected) {
  const std::string bytes =
      "HTTP/1.1 429 Too Many\r\ncontent-length: 5\r\nConnection: close\r\n\r\nhello";
  for (std::size_t at_once = 1; at_once < 9; ++at_once) {
    const Read read(bytes, at_once);
    EXPECT_EQ(read.reader.state(), ResponseReader::State::done);
    EXPECT_EQ(read.reader.status(), 429);
    EXPECT_EQ(read.reader.body(), "hello");
    EXPECT_FALSE(read.reader.keep_alive());
  }
}

TEST(ResponseReader, BodyWithoutLengthEndsWithTheConnection) {
  const std::string bytes = "HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: x\n\n";
  EXPECT_EQ(Read(bytes, 3).reader.state(), ResponseReader::State::body);
  const Read closed(bytes, 3, true);
  EXPECT_EQ(closed.reader.state(), ResponseReader::State::done);
  EXPECT_EQ(closed.events, std::vector<std::string>{"x"});
}

TEST(ResponseReader, ABodyCutShortIsBroken) {
  EXPECT_EQ(Read(kChunked.substr(0, kChunked.size() - 8), 7, true).reader.state(),
            ResponseReader::State::broken);
  EXPECT_EQ(Read("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab", 7, true).reader.state(),
            ResponseReader::State::broken);
}

TEST(ResponseReader, ContinueIsFollowedByTheRealAnswer) {
  const Read read("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", 4);
  EXPECT_EQ(read.reader.status(), 200);
  EXPECT_EQ(read.reader.body(), "ok");
}

TEST(ResponseReader, NonsenseIsBrokenNotFollowed) {
  for (const char* bytes :
       {"SSH-2.0-x\r\n", "HTTP/1.1 2x0 OK\r\n", "HTTP/1.1 200 OK\r\nno colon\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"})
    EXPECT_EQ(Read(bytes, 5).reader.state(), ResponseReader::State::broken) << bytes;
  EXPECT_EQ(Read("HTTP/1.1 200 OK\r\nA: " + std::string(70000, 'a'), 1000).reader.state(),
            ResponseReader::State::broken);
}

}  // namespace
}  // namespace quire
