// replay/lines.h - a text file line by line, plain or compressed with gzip.
//
//   TRY(LineReader lines, LineReader::open(path));
//   while (true) {
//     TRY(const std::optional<std::string_view> line, lines.next());
//     if (!line) break;
//   }
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace quire {

class LineReader {
 public:
  static constexpr std::size_t kLineMax = 16u << 20;

  static Result<LineReader> open(const std::string& path);
  static LineReader over(std::string text, std::string name);  // not of a file

  // The next line without its end, good until the next call; nothing at the end of the file. An
  // error if it is longer than kLineMax or the file is damaged.
  Result<std::optional<std::string_view>> next();
  std::uint64_t number() const { return number_; }  // of the last line, from 1
  const std::string& path() const { return path_; }

 private:
  LineReader() = default;

  std::string path_, buffer_;
  std::size_t at_ = 0;
  std::uint64_t number_ = 0;
  bool ended_ = false;
  std::shared_ptr<void> file_;  // zlib's, which reads plain files too
};

}  // namespace quire
