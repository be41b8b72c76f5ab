#include "net/response_reader.h"

#include <algorithm>
#include <charconv>

namespace quire {
namespace {

constexpr std::size_t kHeadBytesMax = 64 << 10;
constexpr std::size_t kBodyBytesMax = 64 << 20;

std::string_view trim(std::string_view s) {
  while (!s.empty() && (s.front() == ' ' || s.front() == '\t')) s.remove_prefix(1);
  while (!s.empty() && (s.back() == ' ' || s.back() == '\t' || s.back() == '\r'))
    s.remove_suffix(1);
  return s;
}

template <class Number>
bool read_number(std::string_view text, Number& into, int base = 10) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), into, base);
  return error == std::errc{} && end == text.data() + text.size();
}

}  // namespace

// Moves bytes up to and with the next newline into line_; line_ready_ says that it came.
std::size_t ResponseReader::take_line(std::string_view bytes) {
  const std::size_t newline = bytes.find('\n');
  const std::size_t taken = newline == std::string_view::npos ? bytes.size() : newline + 1;
  line_.append(bytes.substr(0, taken));
  line_ready_ = newline != std::string_view::npos;
  head_bytes_ += taken;
  if (head_bytes_ > kHeadBytesMax) give_up();
  return taken;
}

void ResponseReader::head_line(std::string_view line) {
  if (status_ == 0) {  // HTTP/1.1 200 OK
    if (!line.starts_with("HTTP/1.") || line.size() < 12) return give_up();
    keep_alive_ = line[7] == '1';
    if (!read_number(line.substr(9, 3), status_) || status_ < 100) give_up();
    return;
  }
  if (line.empty()) return head_done();
  const std::size_t colon = line.find(':');
  if (colon == std::string_view::npos) return give_up();
  const std::string_view name = line.substr(0, colon), value = trim(line.substr(colon + 1));
  if (parts_.headers) parts_.headers->push_back({std::string(name), std::string(value)});
  if (same_word(name, "content-length")) {
    sized_ = read_number(value, left_);
    if (!sized_) give_up();
  } else if (same_word(name, "transfer-encoding")) {
    chunked_ = same_word(value, "chunked");
    if (!chunked_) give_up();
  } else if (same_word(name, "connection")) {
    if (same_word(value, "close")) keep_alive_ = false;
    if (same_word(value, "keep-alive")) keep_alive_ = true;
  } else if (same_word(name, "content-type")) {
    event_stream_ = same_word(trim(value.substr(0, value.find(';'))), "text/event-stream");
  }
}

void ResponseReader::head_done() {
  if (status_ < 200) {  // 100 Continue: the real one follows
    if (parts_.headers) parts_.headers->clear();
    *this = ResponseReader(parts_);
    return;
  }
  state_ = State::body;
  if (parts_.head_only) {
    mode_ = Body::sized;
    left_ = 0;
  } else if (chunked_) {
    mode_ = Body::chunk_size;
  } else if (sized_ || status_ == 204 || status_ == 304) {
    mode_ = Body::sized;
    if (!sized_) left_ = 0;
  } else {
    mode_ = Body::until_close;
    keep_alive_ = false;
  }
}

void ResponseReader::chunk_line(std::string_view line) {
  if (mode_ == Body::chunk_end) {
    if (!line.empty()) give_up();
    mode_ = Body::chunk_size;
  } else if (mode_ == Body::trailer) {
    if (line.empty()) left_ = 0, mode_ = Body::sized;
  } else {
    if (!read_number(trim(line.substr(0, line.find(';'))), left_, 16)) return give_up();
    mode_ = left_ == 0 ? Body::trailer : Body::chunk;
  }
}

void ResponseReader::event_line(std::string_view line, const OnEvent& on_event) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  if (line.empty()) {
    if (has_data_) on_event(data_);
    data_.clear();
    has_data_ = false;
  } else if (line.starts_with("data:")) {
    line.remove_prefix(5);
    if (line.starts_with(' ')) line.remove_prefix(1);
    if (has_data_) data_ += '\n';
    data_ += line;
    has_data_ = true;
  }
}

void ResponseReader::take_body(std::string_view bytes, const OnEvent& on_event) {
  if (parts_.body) {
    if (!(*parts_.body)(bytes)) give_up();
    return;
  }
  if (!event_stream_) {
    body_.append(bytes);
    if (body_.size() > kBodyBytesMax) give_up();
    return;
  }
  while (!bytes.empty()) {
    const std::size_t newline = bytes.find('\n');
    if (newline == std::string_view::npos) {
      event_line_.append(bytes);
      if (event_line_.size() + data_.size() > kBodyBytesMax) give_up();
      return;
    }
    if (event_line_.empty()) {
      event_line(bytes.substr(0, newline), on_event);
    } else {
      event_line_.append(bytes.substr(0, newline));
      event_line(event_line_, on_event);
      event_line_.clear();
    }
    bytes.remove_prefix(newline + 1);
  }
}

void ResponseReader::finish(const OnEvent& on_event) {
  // The last event may lack its blank line.
  if (event_stream_ && !event_line_.empty()) event_line(event_line_, on_event);
  if (has_data_) on_event(data_);
  has_data_ = false;
  state_ = State::done;
}

ResponseReader::State ResponseReader::feed(std::string_view bytes, const OnEvent& on_event) {
  while (state_ == State::head || state_ == State::body) {
    if (state_ == State::body && mode_ == Body::sized && left_ == 0) {
      finish(on_event);
      break;
    }
    if (bytes.empty()) break;
    const bool in_frame = state_ == State::head || mode_ == Body::chunk_size ||
                          mode_ == Body::chunk_end || mode_ == Body::trailer;
    if (in_frame) {
      bytes.remove_prefix(take_line(bytes));
      if (state_ == State::broken || !line_ready_) continue;
      const std::string line(trim(std::string_view(line_).substr(0, line_.size() - 1)));
      line_.clear();
      line_ready_ = false;
      if (state_ == State::head) {
        head_line(line);
      } else {
        head_bytes_ = 0;
        chunk_line(line);
      }
      continue;
    }
    std::size_t take = bytes.size();
    if (mode_ != Body::until_close) take = std::min<std::uint64_t>(take, left_);
    take_body(bytes.substr(0, take), on_event);
    bytes.remove_prefix(take);
    if (mode_ != Body::until_close) left_ -= take;
    if (mode_ == Body::chunk && left_ == 0) mode_ = Body::chunk_end;
  }
  return state_;
}

ResponseReader::State ResponseReader::end_of_input(const OnEvent& on_event) {
  keep_alive_ = false;
  if (state_ == State::body && mode_ == Body::until_close)
    finish(on_event);
  else if (state_ != State::done)
    give_up();
  return state_;
}

}  // namespace quire
