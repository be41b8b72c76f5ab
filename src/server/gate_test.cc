#include "server/gate.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

HttpRequest request_of(std::string method, std::vector<HttpHeader> headers) {
  HttpRequest r;
  r.method = std::move(method);
  r.headers = std::move(headers);
  return r;
}

int status_of(const Gate& gate, std::string method, std::vector<HttpHeader> headers) {
  const auto error = gate.check(request_of(std::move(method), std::move(headers)));
  return error ? error->status : 200;
}

TEST(Gate, OnlyNamesOfThisMachineAreAnsweredWithoutKeys) {
  const Gate gate({.hosts = {"box.local"}});
  for (const char* host : {"localhost", "LOCALHOST:8080", "127.0.0.1:1", "127.8.8.8", "[::1]:80",
                           "::1", "box.local:80", "localhost.", ""})
    EXPECT_EQ(status_of(gate, "GET", {{"Host", host}}), 200) << host;
  for (const char* host : {"evil.example", "localhost.evil.example", "10.0.0.1", "127.0.0.1.nip.io",
                           "[2001:db8::1]", "box.local.evil"})
    EXPECT_EQ(status_of(gate, "GET", {{"Host", host}}), 403) << host;
  const Gate keyed({.check_host = false});
  EXPECT_EQ(status_of(keyed, "GET", {{"Host", "10.0.0.1"}}), 200);  // a probe by address
}

TEST(Gate, PagesFromElsewhereAreRefused) {
  const Gate gate({});
  const HttpHeader host{"Host", "localhost:8080"}, json{"Content-Type", "application/json"};
  EXPECT_EQ(status_of(gate, "POST", {host, json}), 200);
  EXPECT_EQ(status_of(gate, "POST", {host, {"Content-Type", "text/plain"}}), 200);  // a program
  EXPECT_EQ(status_of(gate, "POST", {host, json, {"Origin", "http://localhost:8080"}}), 200);
  EXPECT_EQ(status_of(gate, "POST", {host, json, {"Origin", "https://evil.example"}}), 403);
  EXPECT_EQ(status_of(gate, "POST", {host, json, {"Origin", "null"}}), 403);
  EXPECT_EQ(status_of(gate, "POST", {host, json, {"Origin", "http://localhost:9999"}}), 403);
  EXPECT_EQ(status_of(gate, "GET", {host, {"Origin", "https://evil.example"}}), 403);
  EXPECT_EQ(status_of(gate, "POST", {host, json, {"Sec-Fetch-Site", "cross-site"}}), 403);
  EXPECT_EQ(status_of(gate, "DELETE", {host, {"Sec-Fetch-Site", "cross-site"}}), 403);
  EXPECT_EQ(status_of(gate, "GET", {host, {"Sec-Fetch-Site", "cross-site"}}), 200);  // a link
  const Gate open({.origins = {"https://app.example"}});
  EXPECT_EQ(status_of(open, "POST", {host, json, {"Origin", "https://app.example"}}), 200);
  EXPECT_EQ(status_of(open, "POST", {host, json, {"Origin", "https://app.example.evil"}}), 403);
}

TEST(Gate, WhatABrowserSendsSaysThatItIsJson) {
  const Gate gate({.origins = {"*"}});
  const HttpHeader host{"Host", "localhost"}, origin{"Origin", "https://any.example"};
  EXPECT_EQ(status_of(gate, "POST", {host, origin, {"Content-Type", "text/plain"}}), 415);
  EXPECT_EQ(status_of(gate, "POST", {host, {"Sec-Fetch-Site", "same-origin"}}), 415);
  EXPECT_EQ(
      status_of(gate, "POST", {host, origin, {"Content-Type", "application/json; charset=utf-8"}}),
      200);
  EXPECT_EQ(status_of(gate, "DELETE", {host, origin}), 200);
}

TEST(Gate, PreflightOfOpenAisClientIsAnswered) {
  const Gate gate({.origins = {"https://app.example"}});
  HttpRequest r = request_of(
      "OPTIONS",
      {{"Origin", "https://app.example"},
       {"Access-Control-Request-Headers",
        "authorization,content-type, X-Stainless-Lang,x-stainless-retry-count,x-strange"}});
  std::string allowed;
  for (const HttpHeader& h : gate.cors_headers(r))
    if (h.name == "Access-Control-Allow-Headers") allowed = h.value;
  EXPECT_NE(allowed.find("x-stainless-lang"), std::string::npos);
  EXPECT_NE(allowed.find("x-stainless-retry-count"), std::string::npos);
  EXPECT_EQ(allowed.find("x-strange"), std::string::npos);
  r.headers[0].value = "https://evil.example";
  EXPECT_TRUE(gate.cors_headers(r).empty());
}

}  // namespace
}  // namespace quire
