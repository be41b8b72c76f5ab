#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "hub/choose_files.h"
#include "hub/hub_client.h"
#include "net/web_url.h"

namespace quire {
namespace {

TEST(HubName, HasARevisionAndAFile) {
  const HubName name = HubName::parse("hf:acme/tiny@v1:a/b.gguf").value();
  EXPECT_EQ(name.full(), "acme/tiny");
  EXPECT_EQ(name.revision, "v1");
  EXPECT_EQ(name.file, "a/b.gguf");
  EXPECT_EQ(name.text(), "hf:acme/tiny@v1:a/b.gguf");
  EXPECT_EQ(HubName::parse("acme/tiny").value().text(), "hf:acme/tiny");
}

TEST(HubName, NothingThatCouldLeaveAFolder) {
  for (const char* bad :
       {"", "hf:", "acme", "a/", "/b", "../b", "a/..", "a/b/c", "a/b@", "a/b@../x", "a/b:/x",
        "a/b:x/../y", "a--b/c", "-a/b", ".a/b", "a/b c", "a/b:x\\y"})
    EXPECT_FALSE(HubName::parse(bad).ok()) << bad;
}

std::string chosen_main(std::vector<std::string> paths, std::string_view wanted = "") {
  const auto chosen = choose_files(paths, wanted, "a/b");
  return chosen.ok() ? chosen.value().main : "error: " + chosen.error().message;
}

TEST(ChooseFiles, FourBitsWhereThereAreSome) {
  EXPECT_EQ(chosen_main({"m-IQ4_K_M.gguf", "m-Q8_0.gguf", "m-Q4_K_M.gguf"}), "m-Q4_K_M.gguf");
  EXPECT_EQ(chosen_main({"m-Q8_0.gguf", "m-Q5_K_M.gguf"}), "m-Q5_K_M.gguf");
  EXPECT_EQ(chosen_main({"strange.gguf"}), "strange.gguf");
  EXPECT_EQ(chosen_main({"m-Q4_0_4_4.gguf", "m-Q4_0.gguf"}, "q4_0"), "m-Q4_0.gguf");
}

TEST(ChooseFiles, PartsComeWhole) {
  const std::vector<std::string> paths = {"q/m-00002-of-00002.gguf", "q/m-00001-of-00002.gguf"};
  const ChosenFiles chosen = choose_files(paths, "", "a/b").value();
  EXPECT_EQ(chosen.main, "q/m-00001-of-00002.gguf");
  EXPECT_EQ(chosen.files, (std::vector<std::size_t>{1, 0}));
  EXPECT_NE(chosen_main({"m-00002-of-00002.gguf"}).find("only 1 of 2"), std::string::npos);
}

TEST(ChooseFiles, SafetensorsNeedAConfiguration) {
  EXPECT_EQ(chosen_main({"model.safetensors", "config.json"}), "");
  EXPECT_NE(chosen_main({"model.safetensors"}).find("neither"), std::string::npos);
  const std::vector<std::string> paths = {"README.md", "config.json", "consolidated.safetensors",
                                          "model.safetensors", "x/tokenizer.json"};
  EXPECT_EQ(choose_files(paths, "", "a/b").value().files, (std::vector<std::size_t>{3, 1}));
}

std::string followed(const char* from, const char* to) {
  const auto url = WebUrl::parse(from).value().follow(to);
  return url.ok() ? url.value().text() : "refused";
}

TEST(WebUrl, RedirectsLeadWhereBrowsersGo) {
  EXPECT_EQ(followed("https://a.b/c/d?e=f", "/x"), "https://a.b/x");
  EXPECT_EQ(followed("https://a.b/c/d?e=f", "x?y"), "https://a.b/c/x?y");
  EXPECT_EQ(followed("https://a.b/c", "//d.e/f"), "https://d.e/f");
  EXPECT_EQ(followed("http://a.b:81/c", "https://d.e:9/f#g"), "https://d.e:9/f");
  EXPECT_EQ(followed("http://a.b/c", "/d?u=http://x/y"), "http://a.b/d?u=http://x/y");
  EXPECT_EQ(followed("https://a.b/c", "http://a.b/c"), "refused");  // not encrypted any more
  EXPECT_EQ(followed("https://a.b/c", "/x\r\nHost: evil"), "refused");
}

TEST(WebUrl, WhatIsNoUrlIsRefused) {
  for (const char* bad : {"", "a.b", "ftp://a", "https://", "https://a:0/", "https://a:99999/",
                          "https://u:p@a/", "https://[::1/", "https://a b/"})
    EXPECT_FALSE(WebUrl::parse(bad).ok()) << bad;
  EXPECT_EQ(WebUrl::parse("http://[::1]:80/x").value().text(), "http://[::1]/x");
}

}  // namespace
}  // namespace quire
