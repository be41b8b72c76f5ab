#include "lab/board/progress.h"

#include <cstdio>
#include <filesystem>
#include <sstream>

#include "base/file.h"

namespace quire {

Result<Progress> Progress::open(const std::string& folder, const std::string& manifest,
                                std::size_t rows) {
  Progress p;
  if (folder.empty()) return p;
  std::filesystem::create_directories(folder);
  p.path_ = folder + "/progress.jsonl";
  if (auto old = read_file(p.path_); old.ok()) {
    std::istringstream lines(old.value());
    std::string line;
    std::getline(lines, line);
    if (line != manifest)
      return Error{Code::invalid, p.path_ + ": belongs to another run (" + line.substr(0, 12) +
                                      "); name another folder or delete it"};
    while (std::getline(lines, line)) {
      const auto parsed = parse_json(line);
      if (!parsed.ok() || !p.take(parsed.value(), rows)) break;  // a line cut short by a crash
      p.text_ += line + '\n';
    }
  }
  p.text_ = manifest + '\n' + p.text_;
  TRY_STATUS(write_file(p.path_, p.text_));
  return p;
}

const std::vector<Outcome>* Progress::find(const std::string& key) const {
  const auto at = done_.find(key);
  return at == done_.end() ? nullptr : &at->second;
}

Status Progress::add(const std::string& key, const std::vector<Outcome>& outcomes) {
  Json numbers = Json::array();
  for (const Outcome& o : outcomes)
    for (double Outcome::*field : kOutcomeFields) numbers.push_back(o.*field);
  done_[key] = outcomes;
  if (path_.empty()) return {};
  const std::string line = Json{{"key", key}, {"numbers", numbers}}.dump() + '\n';
  std::FILE* file = std::fopen(path_.c_str(), "ab");
  const bool written = file && std::fwrite(line.data(), 1, line.size(), file) == line.size();
  if (file && std::fclose(file) == 0 && written) return {};
  return Error{Code::unavailable, path_ + ": cannot be written; is the disk full?"};
}

bool Progress::take(const Json& line, std::size_t rows) {
  if (!line.is_object() || !line.contains("key") || !line.contains("numbers")) return false;
  const Json& numbers = line["numbers"];
  if (!line["key"].is_string() || !numbers.is_array() ||
      numbers.size() != rows * std::size(kOutcomeFields))
    return false;
  std::vector<Outcome> outcomes(rows);
  std::size_t at = 0;
  for (Outcome& o : outcomes)
    for (double Outcome::*field : kOutcomeFields) {
      const Json& x = numbers[at++];
      if (!x.is_number() && !x.is_null()) return false;
      o.*field = x.is_null() ? std::nan("") : x.get<double>();
    }
  done_[line["key"].get<std::string>()] = outcomes;
  return true;
}

}  // namespace quire
