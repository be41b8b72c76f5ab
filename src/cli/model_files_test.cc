#include "cli/model_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace quire::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A cache folder of its own, with one model.
class ModelFiles : public testing::Test {
 protected:
  ModelFiles() {
    std::filesystem::create_directories(model_cache_folder());
    std::ofstream(model_cache_folder() + "/small.gguf") << "x";
  }
  ~ModelFiles() override { std::filesystem::remove_all(folder_); }

  static ModelAndText told(std::string first, std::string second = {}, std::string named = {}) {
    auto both = tell_text_from_model(std::move(first), std::move(second), std::move(named));
    return both.ok() ? both.value() : ModelAndText{"error", both.error().message};
  }

  const std::string folder_ = [] {
    std::string f = testing::TempDir() + "/model_files_" + std::to_string(::getpid());
    ::setenv("XDG_CACHE_HOME", f.c_str(), 1);
    return f;
  }();
};

TEST_F(ModelFiles, ALoneWordThatNamesNoModelIsTheText) {
  for (const char* text : {"hello", "Why is the sky blue?", "Summarise:", "and so on..."}) {
    EXPECT_EQ(told(text).model, "") << text;
    EXPECT_EQ(told(text).text, text);
  }
  for (const char* model :
       {"small", "small.gguf", "/no/such", "./x y", "other.gguf", "a/b", "hf:a/b"}) {
    EXPECT_EQ(told(model).model, model);
    EXPECT_EQ(told(model).text, "") << model;
  }
  EXPECT_EQ(told("hello", "there").model, "hello");
  EXPECT_EQ(told("hello", "there").text, "there");
}

TEST_F(ModelFiles, WithAnOptionForTheModelTheOtherWordIsTheText) {
  EXPECT_EQ(told("small", "", "m.gguf").model, "m.gguf");
  EXPECT_EQ(told("small", "", "m.gguf").text, "small");
  EXPECT_EQ(told("", "", "m.gguf").model, "m.gguf");
  EXPECT_EQ(told("a", "b", "m.gguf").model, "error");
}

TEST_F(ModelFiles, AMissingModelListsWhatIsThere) {
  EXPECT_TRUE(find_model("small").ok());
  EXPECT_THAT(cached_models(), ElementsAre("small"));
  EXPECT_THAT(find_model("llama3").error().message, HasSubstr("small"));
  EXPECT_THAT(find_model("llama3").error().message, HasSubstr("no model at llama3"));
  EXPECT_THAT(find_model("").error().message, HasSubstr("default"));
}

TEST_F(ModelFiles, ATildeIsTheHomeFolder) {
  ::setenv("HOME", "/home/someone", 1);
  EXPECT_EQ(home_path("~/x"), "/home/someone/x");
  EXPECT_EQ(home_path("~"), "/home/someone");
  EXPECT_EQ(home_path("~x"), "~x");
  EXPECT_EQ(home_path("a~/x"), "a~/x");
}

}  // namespace
}  // namespace quire::cli
