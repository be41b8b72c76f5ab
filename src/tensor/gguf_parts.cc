#include "tensor/gguf_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

namespace quire {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSuffix = ".gguf", kOf = "-of-";
constexpr std::size_t kDigits = 5;

// Takes a number of five digits, and what stands before it, off the end.
std::optional<std::uint32_t> take_number(std::string_view& text, std::string_view before) {
  if (text.size() < before.size() + kDigits) return {};
  const std::string_view digits = text.substr(text.size() - kDigits);
  std::uint32_t number = 0;
  const auto [end, error] = std::from_chars(digits.begin(), digits.end(), number);
  if (error != std::errc() || end != digits.end()) return {};
  text.remove_suffix(kDigits);
  if (!text.ends_with(before)) return {};
  text.remove_suffix(before.size());
  return number;
}

}  // namespace

std::string GgufPart::path(std::uint32_t of_number) const {
  return fmt::format("{}-{:05}-of-{:05}.gguf", prefix, of_number, count);
}

std::optional<GgufPart> part_of(std::string_view path) {
  if (!path.ends_with(kSuffix)) return {};
  path.remove_suffix(kSuffix.size());
  const auto count = take_number(path, kOf);
  const auto number = count ? take_number(path, "-") : std::nullopt;
  if (!number || *number == 0 || *number > *count || path.empty() || path.ends_with('/')) return {};
  return GgufPart{std::string(path), *number, *count};
}

std::string gguf_stem(const std::string& path) {
  const std::optional<GgufPart> part = part_of(path);
  const fs::path file(part ? part->prefix + ".gguf" : path);
  return file.stem().string();
}

Result<std::vector<std::string>> gguf_files(const std::string& path) {
  std::error_code ignored;
  std::optional<GgufPart> part = part_of(path);
  if (!part && !fs::exists(path, ignored)) {
    const fs::path folder = fs::path(path).parent_path();
    for (const fs::directory_entry& e :
         fs::directory_iterator(folder.empty() ? "." : folder, ignored)) {
      std::optional<GgufPart> other = part_of((folder / e.path().filename()).string());
      if (!other || other->prefix != path) continue;
      if (part && part->count != other->count)
        return Error{Code::invalid,
                     fmt::format("{}: begins the names of {} and of {}; name one of them", path,
                                 part->path(part->number), other->path(other->number))};
      part = std::move(other);
    }
  }
  std::vector<std::string> files;
  for (std::uint32_t i = 1; part && i <= part->count; ++i)
    if (std::string file = part->path(i); fs::exists(file, ignored))
      files.push_back(std::move(file));
  if (files.empty()) files.push_back(path);
  return files;
}

}  // namespace quire
