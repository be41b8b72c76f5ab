#include "server/model_of_request.h"

#include "base/json.h"

namespace quire {
namespace {

// Looks at a JSON text for one string and stops when it is found.
class ModelFinder {
 public:
  std::string take() { return std::move(found_); }

  bool null() { return value(); }
  bool boolean(bool) { return value(); }
  bool number_integer(Json::number_integer_t) { return value(); }
  bool number_unsigned(Json::number_unsigned_t) { return value(); }
  bool number_float(Json::number_float_t, const std::string&) { return value(); }
  bool binary(Json::binary_t&) { return false; }
  bool string(std::string& text) {
    if (depth_ == 1 && is_model_) {
      found_ = std::move(text);
      return false;  // that is all
    }
    return value();
  }
  bool key(std::string& name) {
    is_model_ = depth_ == 1 && name == "model";
    return true;
  }
  bool start_object(std::size_t) { return open(); }
  bool start_array(std::size_t) { return depth_ > 0 && open(); }  // the body is an object
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception&) {
    return false;
  }

 private:
  bool value() {
    is_model_ = false;
    return depth_ > 0;
  }
  bool open() {
    is_model_ = false;
    return ++depth_ <= 256;
  }
  bool close() {
    --depth_;
    return true;
  }
  int depth_ = 0;
  bool is_model_ = false;
  std::string found_;
};

}  // namespace

std::string model_of_body(std::string_view body) {
  ModelFinder finder;
  Json::sax_parse(body.begin(), body.end(), &finder);
  return finder.take();
}

std::string model_of_target(const HttpRequest& request) {
  const std::string_view path = request.path;
  constexpr std::string_view kModels = "/models/";
  if (const std::size_t at = path.find(kModels); at != path.npos) {
    std::string_view name = path.substr(at + kModels.size());
    if (request.method == "POST") name = name.substr(0, name.rfind(':'));
    return percent_decode(name);
  }
  return request.parameter("model").value_or("");
}

std::string model_of_request(const HttpRequest& request) {
  std::string name = model_of_target(request);
  if (name.empty() && !request.body.empty()) name = model_of_body(request.body);
  constexpr std::string_view kGemini = "models/";  // as its clients write names in bodies
  if (name.starts_with(kGemini)) name.erase(0, kGemini.size());
  return name;
}

}  // namespace quire
