#include "text/vocab_json_reader.h"

#include "base/json_problem.h"

namespace quire {
namespace {

using nlohmann::json;

class Handler : public nlohmann::json_sax<json> {
 public:
  Handler(TokenizerJson& out, const char* name) : out_(out), name_(name) {}
  const std::string& error() const { return error_; }

  bool null() override { return value(nullptr); }
  bool boolean(bool v) override { return value(v); }
  bool number_integer(number_integer_t v) override { return number(v); }
  bool number_unsigned(number_unsigned_t v) override {
    return number(static_cast<std::int64_t>(std::min<number_unsigned_t>(v, INT64_MAX)));
  }
  bool number_float(number_float_t v, const string_t&) override { return value(v); }
  bool binary(binary_t&) override { return fail("binary data"); }
  bool string(string_t& v) override {
    if (part_ != Part::merges) return value(std::move(v));
    if (depth_ == kMergesDepth) {
      out_.merges.push_back(std::move(v));
      return true;
    }
    pair_.push_back(std::move(v));
    return true;
  }
  bool key(string_t& v) override {
    if (depth_ < std::size(path_)) path_[depth_] = v;
    key_ = std::move(v);
    return true;
  }
  bool start_object(std::size_t) override {
    if (++depth_ > kDepthMax) return fail("is nested deeper than 64 levels");
    if (part_ == Part::merges) return fail("model.merges holds an object");
    if (part_ == Part::vocab) return fail("model.vocab holds an object");
    if (at_model("vocab")) {
      part_ = Part::vocab;
      return true;
    }
    return open(json::object());
  }
  bool end_object() override { return close(); }
  bool start_array(std::size_t) override {
    if (++depth_ > kDepthMax) return fail("is nested deeper than 64 levels");
    if (part_ == Part::vocab) return fail("model.vocab holds an array");
    if (part_ == Part::merges) {
      pair_.clear();
      return depth_ == kMergesDepth + 1 || fail("model.merges holds an array of arrays");
    }
    if (at_model("merges")) {
      part_ = Part::merges;
      return true;
    }
    return open(json::array());
  }
  bool end_array() override {
    if (part_ == Part::merges && depth_ == kMergesDepth + 1) {
      --depth_;
      // Joined with a space as in older files, so a half with a space in it could not be told
      // apart.
      if (pair_.size() != 2 || pair_[0].empty() || pair_[0].find(' ') != std::string::npos ||
          pair_[1].find(' ') != std::string::npos)
        return fail("model.merges has an entry that is not a pair of pieces without spaces");
      out_.merges.push_back(pair_[0] + ' ' + pair_[1]);
      return true;
    }
    return close();
  }
  bool parse_error(std::size_t, const std::string&, const json::exception& e) override {
    return fail("is not JSON" + json_problem(e));
  }

 private:
  static constexpr std::size_t kDepthMax = 64,
                               kMergesDepth = 3;  // the root is depth 1, model 2, model.merges 3
  enum class Part { rest, vocab, merges };

  bool at_model(std::string_view name) const {
    return depth_ == 3 && open_.size() == 2 && path_[1] == "model" && path_[2] == name;
  }
  bool fail(std::string message) {
    if (error_.empty()) error_ = std::string(name_) + ' ' + message;
    return false;
  }
  bool number(std::int64_t v) {
    if (part_ != Part::vocab) return value(v);
    out_.vocab.emplace_back(std::move(key_), v);
    return true;
  }
  bool value(json v) {
    if (part_ == Part::vocab)
      return fail("model.vocab has an id that is no integer, for '" + key_ + "'");
    if (part_ == Part::merges) return fail("model.merges holds something else than pieces");
    place(std::move(v));
    return true;
  }
  json* place(json v) {
    if (open_.empty()) {
      out_.rest = std::move(v);
      return &out_.rest;
    }
    json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(v));
      return &parent.back();
    }
    return &(parent[key_] = std::move(v));
  }
  bool open(json v) {
    open_.push_back(place(std::move(v)));
    return true;
  }
  bool close() {
    --depth_;
    if (part_ == Part::rest) open_.pop_back();
    part_ = Part::rest;
    return true;
  }

  TokenizerJson& out_;
  const char* name_;
  std::string error_, key_, path_[3];  // path_[d]: the key last seen in the object at depth d
  std::size_t depth_ = 0;
  Part part_ = Part::rest;
  std::vector<json*> open_;  // the containers around the current place; they do not move while open
  std::vector<std::string> pair_;  // a merge written as an array
};

}  // namespace

Result<TokenizerJson> read_tokenizer_json(std::string_view text, const char* name) {
  TokenizerJson out;
  Handler handler(out, name);
  try {
    if (!json::sax_parse(text, &handler)) return Error{Code::corrupt, handler.error()};
  } catch (const json::exception& e) {
    return Error{Code::corrupt, std::string(name) + " is not JSON" + json_problem(e)};
  }
  if (!out.rest.is_object())
    return Error{Code::corrupt, std::string(name) + " is not a JSON object"};
  return out;
}

}  // namespace quire
