#include "tensor/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "tensor/gguf_writer.h"

namespace quire {
namespace {

using ::testing::HasSubstr;

std::span<const std::byte> as_bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

// The message of the error that parsing gives, or nothing when it works.
std::string error_of(const std::string& file) {
  const auto parsed = GgufFile::parse(as_bytes(file), "m.gguf");
  return parsed.ok() ? "" : parsed.error().message;
}

const std::vector<std::byte> kSixFloats(24, std::byte{1});
constexpr std::uint64_t kTwoByThree[] = {2, 3}, kThree[] = {3};

GgufWriter small() {
  GgufWriter w;
  w.add("general.architecture", "llama");
  w.add_u32("layers", 7);
  w.add_f32("base", 2.5f);
  w.add_bool("tied", true);
  w.add_strings("tokens", std::vector<std::string>{"a", "", "ccc"});
  w.add_i32s("types", std::vector<std::int32_t>{1, -3});
  w.add_f32s("scores", std::vector<float>{0.5f});
  w.add_tensor("first", DType::f32, kTwoByThree, kSixFloats);
  w.add_tensor("second", DType::f32, kTwoByThree, kSixFloats);
  return w;
}

// Replaces the first occurrence of some raw bytes.
template <class T>
std::string patched(std::string file, std::string_view after, std::size_t skip, T value) {
  const std::size_t at = file.find(after);
  EXPECT_NE(at, file.npos);
  std::memcpy(file.data() + at + after.size() + skip, &value, sizeof value);
  return file;
}

TEST(Gguf, ReadsBackWhatWasWritten) {
  for (const std::uint32_t version : {2u, 3u}) {
    const std::string bytes = small().finish(version);
    const auto parsed = GgufFile::parse(as_bytes(bytes), "m.gguf");
    ASSERT_TRUE(parsed.ok()) << parsed.error().message;
    const GgufFile& file = parsed.value();
    EXPECT_EQ(file.string_of("general.architecture").value(), "llama");
    EXPECT_EQ(file.unsigned_of("layers").value(), 7u);
    EXPECT_EQ(file.f32_of("base").value(), 2.5f);
    EXPECT_TRUE(file.bool_of("tied").value());
    const GgufStrings tokens = file.strings_of("tokens").value();
    EXPECT_EQ(std::vector<std::string_view>(tokens.begin(), tokens.end()),
              (std::vector<std::string_view>{"a", "", "ccc"}));
    const GgufNumbers<std::int64_t> types = file.integers_of("types").value();
    EXPECT_EQ(std::vector<std::int64_t>(types.begin(), types.end()),
              (std::vector<std::int64_t>{1, -3}));
    EXPECT_EQ(file.floats_of("scores").value()[0], 0.5f);
    const TensorView* tensor = file.find("second");
    ASSERT_NE(tensor, nullptr);
    EXPECT_EQ(tensor->shape, (std::vector<std::uint64_t>{2, 3}));
    EXPECT_EQ(tensor->data.size(), 24u);
    EXPECT_EQ(file.find("third"), nullptr);
  }
}

TEST(Gguf, MissingAndMistypedKeysAreNamed) {
  const std::string bytes = small().finish();
  const auto parsed = GgufFile::parse(as_bytes(bytes), "m.gguf");
  ASSERT_TRUE(parsed.ok());
  const GgufFile& file = parsed.value();
  EXPECT_THAT(file.unsigned_of("llama.block_count").error().message,
              HasSubstr("'llama.block_count' is missing"));
  EXPECT_THAT(file.unsigned_of("base").error().message, HasSubstr("'base' is of type f32"));
  EXPECT_THAT(file.string_of("layers").error().message, HasSubstr("'layers' is of type u32"));
  EXPECT_THAT(file.floats_of("tokens").error().message, HasSubstr("array of string"));
  EXPECT_THAT(file.strings_of("types").error().message, HasSubstr("array of i32"));
  EXPECT_EQ(file.unsigned_or("absent", 5).value(), 5u);
  EXPECT_FALSE(file.unsigned_or("base", 5).ok());
}

// Whatever the cut, there is an error, and it says that the file ends early.
TEST(Gguf, EveryTruncationIsAnError) {
  const std::string whole = small().finish();
  ASSERT_EQ(error_of(whole), "");
  for (std::size_t n = 0; n < whole.size(); ++n) {
    // A copy of exactly n bytes, so that a sanitizer sees a read past the end.
    const std::vector<char> cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(n));
    const auto parsed = GgufFile::parse(std::as_bytes(std::span(cut)), "m.gguf");
    ASSERT_FALSE(parsed.ok()) << "cut at " << n;
    EXPECT_EQ(parsed.error().code, Code::corrupt);
  }
}

TEST(Gguf, OtherFormatsAndVersionsAreRefusedByName) {
  EXPECT_THAT(error_of("GGML is another format"), HasSubstr("not a GGUF file"));
  EXPECT_THAT(error_of(small().finish(1)), HasSubstr("version 1"));
  EXPECT_THAT(error_of(small().finish(4)), HasSubstr("version 4"));
  EXPECT_THAT(error_of(small().finish(0x03000000)), HasSubstr("big-endian"));
}

TEST(Gguf, LyingLengthsAndTypesNameTheirKey) {
  const std::string file = small().finish();
  const std::uint64_t huge = ~std::uint64_t{0};
  EXPECT_THAT(error_of(patched(file, "GGUF", 4, huge)), HasSubstr("tensors"));
  EXPECT_THAT(error_of(patched(file, "GGUF", 12, huge)), HasSubstr("keys"));
  EXPECT_THAT(error_of(patched(file, "general.architecture", 4, huge)),
              HasSubstr("'general.architecture'"));
  EXPECT_THAT(error_of(patched(file, "general.architecture", 4, std::uint64_t{1} << 40)),
              HasSubstr("'general.architecture'"));
  EXPECT_THAT(error_of(patched(file, "layers", 0, std::uint32_t{99})),
              HasSubstr("'layers' has unknown type 99"));
  EXPECT_THAT(error_of(patched(file, "tied", 4, std::uint8_t{2})),
              HasSubstr("'tied' is a boolean of value 2"));
  EXPECT_THAT(error_of(patched(file, "tokens", 8, huge)), HasSubstr("'tokens'"));
  EXPECT_THAT(error_of(patched(file, "types", 4, std::uint32_t{9})),
              HasSubstr("'types' is nested"));
  EXPECT_THAT(error_of(patched(file, "types", 8, huge)), HasSubstr("'types' claims"));
  EXPECT_THAT(error_of(patched(file, "types", 8, std::uint64_t{1} << 62)), HasSubstr("'types'"));
}

TEST(Gguf, BadTensorsAreNamed) {
  const std::string file = small().finish();
  // After a name: dimension count, inner and outer extent, type, offset.
  EXPECT_THAT(error_of(patched(file, "first", 0, std::uint32_t{0})),
              HasSubstr("'first' claims 0 dimensions"));
  EXPECT_THAT(error_of(patched(file, "first", 0, std::uint32_t{5})),
              HasSubstr("'first' claims 5 dimensions"));
  EXPECT_THAT(error_of(patched(file, "first", 4, std::uint64_t{0})),
              HasSubstr("'first' has a dimension of 0"));
  EXPECT_THAT(error_of(patched(file, "first", 4, std::uint64_t{1} << 63)),
              HasSubstr("'first' of type F32"));
  EXPECT_THAT(error_of(patched(file, "first", 4, std::uint64_t{1} << 40)),
              HasSubstr("'first' reaches past the end"));
  EXPECT_THAT(error_of(patched(file, "first", 20, std::uint32_t{77})),
              HasSubstr("'first': weight type 77"));
  EXPECT_THAT(error_of(patched(file, "first", 20, std::uint32_t{8})),
              HasSubstr("impossible shape [2, 3]"));
  EXPECT_THAT(error_of(patched(file, "first", 24, std::uint64_t{4})),
              HasSubstr("no multiple of the alignment"));
  EXPECT_THAT(error_of(patched(file, "first", 24, ~std::uint64_t{31})),
              HasSubstr("'first' reaches past the end"));
  EXPECT_THAT(error_of(patched(file, "second", 24, std::uint64_t{0})), HasSubstr("overlaps"));
}

TEST(Gguf, NothingAppearsTwice) {
  GgufWriter keys = small();
  keys.add_u32("layers", 8);
  EXPECT_THAT(error_of(keys.finish()), HasSubstr("key 'layers' appears twice"));
  GgufWriter tensors = small();
  tensors.add_tensor("first", DType::f32, kThree, std::span(kSixFloats).first(12));
  EXPECT_THAT(error_of(tensors.finish()), HasSubstr("tensor 'first' appears twice"));
}

TEST(Gguf, AlignmentMustBeASensiblePowerOfTwo) {
  for (const std::uint32_t bad : {0u, 1u, 24u, 1u << 30}) {
    GgufWriter w = small();
    w.add_u32("general.alignment", bad);
    EXPECT_THAT(error_of(w.finish()), HasSubstr("'general.alignment'")) << bad;
  }
  GgufWriter text = small();
  text.add("general.alignment", "32");
  EXPECT_THAT(error_of(text.finish()), HasSubstr("'general.alignment' is of type string"));
}

TEST(Gguf, NamesInErrorsArePrintable) {
  GgufWriter w;
  w.add_tensor("bad\n\x1b[2J", DType::f32, kThree, {});
  EXPECT_THAT(error_of(w.finish()), HasSubstr("'bad??[2J'"));
}

TEST(Gguf, ViewsSurviveAMove) {
  const std::string path = ::testing::TempDir() + "quire_gguf_test.gguf";
  ASSERT_TRUE(write_file(path, small().finish()).ok());
  auto opened = GgufFile::open(path);
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  const TensorView* before = opened.value().find("first");
  const std::byte* data = before->data.data();
  const GgufFile moved = std::move(opened.value());
  EXPECT_EQ(moved.find("first")->data.data(), data);
  moved.drop_pages(*moved.find("first"));
  EXPECT_EQ(moved.find("first")->data[23], std::byte{1});
  EXPECT_FALSE(GgufFile::open(path + ".absent").ok());
  std::remove(path.c_str());
}

}  // namespace
}  // namespace quire
