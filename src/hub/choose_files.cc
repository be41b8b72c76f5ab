#include "hub/choose_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>

namespace quire {
namespace {

std::string upper(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  return out;
}

std::string_view base_name(std::string_view path) { return path.substr(path.rfind('/') + 1); }

// "x-00002-of-00005.gguf": part 2 of 5 of "x".
struct PartName {
  std::string whole;
  std::uint32_t number = 1, count = 1;
};

PartName part_name(std::string_view path, std::string_view ending) {
  PartName p;
  std::string_view stem = path.substr(0, path.size() - ending.size());
  p.whole = stem;
  constexpr std::size_t kTail = std::string_view("-00001-of-00005").size();
  if (stem.size() <= kTail) return p;
  const std::string_view tail = stem.substr(stem.size() - kTail);
  const auto number = [](std::string_view digits, std::uint32_t& into) {
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), into);
    return error == std::errc{} && end == digits.data() + digits.size();
  };
  std::uint32_t n = 0, count = 0;
  if (tail[0] != '-' || tail.substr(6, 4) != "-of-" || !number(tail.substr(1, 5), n) ||
      !number(tail.substr(10, 5), count) || n == 0 || n > count)
    return p;
  p.whole = stem.substr(0, stem.size() - kTail);
  p.number = n;
  p.count = count;
  return p;
}

// The files of one ending, parts put together. By the name of the whole.
struct Whole {
  std::uint32_t count = 1;
  std::map<std::uint32_t, std::size_t> parts;  // by number
};

std::map<std::string, Whole> wholes(std::span<const std::string> paths, std::string_view ending,
                                    auto accept) {
  std::map<std::string, Whole> found;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    if (!paths[i].ends_with(ending) || !accept(paths[i])) continue;
    const PartName p = part_name(paths[i], ending);
    Whole& whole = found[p.whole + (p.count > 1 ? fmt::format(" of {}", p.count) : "")];
    whole.count = p.count;
    whole.parts[p.number] = i;
  }
  return found;
}

Status all_there(const Whole& whole, std::string_view name, std::string_view repo) {
  if (whole.parts.size() == whole.count) return {};
  return Error{Code::not_found, fmt::format("{}: of {} only {} of {} parts are there", repo, name,
                                            whole.parts.size(), whole.count)};
}

// What else a GGUF repository may hold: projectors for images, statistics for quantizing.
bool is_language_model(std::string_view path) {
  const std::string name = upper(base_name(path));
  return name.find("MMPROJ") == name.npos && name.find("IMATRIX") == name.npos;
}

// Best first. A model of four bits is small, and hardly worse than the whole.
constexpr std::array kQuants = {"Q4_K_M", "Q4_K_S", "Q4_0", "Q4_1", "IQ4_NL",
                                "Q5_K_M", "Q5_K_S", "Q5_0", "Q6_K", "Q8_0",
                                "Q3_K_M", "Q2_K",   "BF16", "F16",  "F32"};

Result<ChosenFiles> choose_gguf(const std::map<std::string, Whole>& files,
                                std::span<const std::string> paths, std::string_view wanted,
                                std::string_view repo) {
  const std::pair<const std::string, Whole>* best = nullptr;
  const auto named = [&](std::string_view word) {
    const std::pair<const std::string, Whole>* found = nullptr;
    for (const auto& file : files) {
      const std::string name = upper(base_name(paths[file.second.parts.begin()->second]));
      const std::size_t at = name.find(upper(word));
      if (at == name.npos) continue;
      // "Q4_K" is not "IQ4_K", and "Q4_0" is not "Q4_0_4_4".
      const auto edge = [&](std::size_t i) {
        return i >= name.size() || !((name[i] >= '0' && name[i] <= '9') || name[i] == '_' ||
                                     (name[i] >= 'A' && name[i] <= 'Z'));
      };
      const bool exact = (at == 0 || edge(at - 1)) && edge(at + word.size());
      if (exact) return &file;
      if (!found) found = &file;
    }
    return found;
  };
  if (!wanted.empty()) {
    best = named(wanted);
  } else {
    for (const char* quant : kQuants)
      if (const auto* found = named(quant)) {
        best = found;
        break;
      }
    if (!best) best = &*files.begin();
  }
  std::string there;
  ChosenFiles chosen;
  for (const auto& file : files) {
    const std::string& first = paths[file.second.parts.begin()->second];
    there += (there.empty() ? "" : ", ") + first;
    if (&file != best) chosen.others.push_back(first);
  }
  if (!best)
    return Error{Code::not_found, fmt::format("{}: has no GGUF file named like '{}'; there are: {}",
                                              repo, wanted, there)};
  TRY_STATUS(all_there(best->second, best->first, repo));
  for (const auto& [number, index] : best->second.parts) chosen.files.push_back(index);
  chosen.main = paths[chosen.files.front()];
  return chosen;
}

// Beside the weights, what the model is and how it reads text.
bool describes_model(std::string_view path) {
  constexpr std::string_view kNames[] = {"config.json",
                                         "generation_config.json",
                                         "tokenizer.json",
                                         "tokenizer.model",
                                         "tokenizer_config.json",
                                         "special_tokens_map.json",
                                         "added_tokens.json",
                                         "vocab.json",
                                         "merges.txt",
                                         "chat_template.jinja",
                                         "chat_template.json",
                                         "model.safetensors.index.json"};
  return std::ranges::find(kNames, path) != std::end(kNames);
}

Result<ChosenFiles> choose_folder(std::span<const std::string> paths, std::string_view repo) {
  const auto files = wholes(paths, ".safetensors", [](std::string_view path) {
    return path.find('/') == path.npos && !path.starts_with("consolidated") &&
           !path.starts_with("adapter_");
  });
  ChosenFiles chosen;
  // A whole file goes before parts of it; "model" before anything else.
  const std::pair<const std::string, Whole>* best = nullptr;
  for (const auto& file : files)
    if (!best || (file.first.starts_with("model") && !best->first.starts_with("model")))
      best = &file;
  if (!best || std::ranges::find(paths, "config.json") == paths.end())
    return Error{Code::not_found, fmt::format("{}: has neither a GGUF file nor safetensors with a "
                                              "config.json; Quire loads nothing else",
                                              repo)};
  TRY_STATUS(all_there(best->second, best->first, repo));
  for (const auto& [number, index] : best->second.parts) chosen.files.push_back(index);
  for (std::size_t i = 0; i < paths.size(); ++i)
    if (describes_model(paths[i])) chosen.files.push_back(i);
  return chosen;
}

}  // namespace

Result<ChosenFiles> choose_files(std::span<const std::string> paths, std::string_view wanted,
                                 std::string_view repo) {
  const auto files = wholes(paths, ".gguf", is_language_model);
  for (const auto& [name, whole] : files)
    for (const auto& [number, index] : whole.parts)
      if (paths[index] == wanted) {
        TRY_STATUS(all_there(whole, name, repo));
        ChosenFiles chosen;
        for (const auto& [n, i] : whole.parts) chosen.files.push_back(i);
        chosen.main = paths[chosen.files.front()];
        return chosen;
      }
  if (!files.empty()) return choose_gguf(files, paths, wanted, repo);
  if (!wanted.empty())
    return Error{Code::not_found,
                 fmt::format("{}: has no GGUF file, so there is no '{}' to choose", repo, wanted)};
  return choose_folder(paths, repo);
}

}  // namespace quire
