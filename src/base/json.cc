#include "base/json.h"

#include <memory>
#include <unordered_map>
#include "base/json_problem.h"

namespace quire {
namespace {

// Builds a value from the parser's events. nlohmann's own builder looks a key up among all keys
// before it, so that an object of n keys takes n * n steps; this one asks a hash table.
class JsonBuilder {
 public:
  JsonBuilder(const JsonLimits& limits) : limits_(limits) {}

  Json take() { return std::move(root_); }
  const std::string& problem() const { return problem_; }

  bool null() { return put(nullptr); }
  bool boolean(bool v) { return put(v); }
  bool number_integer(Json::number_integer_t v) { return put(v); }
  bool number_unsigned(Json::number_unsigned_t v) { return put(v); }
  bool number_float(Json::number_float_t v, const std::string&) { return put(v); }
  bool string(std::string& v) { return large() && put(std::move(v)); }
  bool binary(Json::binary_t&) { return false; }  // not in text

  bool start_object(std::size_t) { return open(Json::object()); }
  bool start_array(std::size_t) { return open(Json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }

  bool key(std::string& name) {
    Level& level = levels_.back();
    auto& members = level.value->get_ref<Json::object_t&>();
    std::size_t at = members.size();
    if (members.size() < kFewKeys) {
      for (std::size_t i = 0; i < members.size() && at == members.size(); ++i)
        if (member(members, i).first == name) at = i;
    } else {
      if (!level.places) {
        level.places = std::make_unique<std::unordered_map<std::string, std::size_t>>();
        for (std::size_t i = 0; i < members.size(); ++i)
          level.places->emplace(member(members, i).first, i);
      }
      at = level.places->emplace(name, members.size()).first->second;
    }
    if (++keys_ > limits_.keys_max) return too_many("keys", limits_.keys_max);
    if (at == members.size()) {
      if (at >= limits_.object_keys_max)
        return too_many("keys in one object", limits_.object_keys_max);
      static_cast<Members&>(members).emplace_back(std::move(name), Json());
    }
    level.slot = at;
    return true;
  }

  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception& e) {
    problem_ = "not JSON" + json_problem(e);
    return false;
  }

 private:
  using Members = Json::object_t::Container;  // a list: keys stay in order
  static constexpr std::size_t kFewKeys = 16;
  struct Level {
    Json* value;           // does not move while it is open: only the innermost grows
    std::size_t slot = 0;  // of the key that was read last
    std::unique_ptr<std::unordered_map<std::string, std::size_t>> places = {};
  };

  static Members::value_type& member(Json::object_t& members, std::size_t i) {
    return static_cast<Members&>(members)[i];
  }

  bool too_many(const char* what, std::size_t max) {
    problem_ = "JSON with more than " + std::to_string(max) + " " + what;
    return false;
  }

  bool large() {
    return ++large_ <= limits_.large_max ||
           too_many("strings, lists and objects", limits_.large_max);
  }

  template <class T>
  Json* place(T&& value) {
    if (++values_ > limits_.values_max) {
      too_many("values", limits_.values_max);
      return nullptr;
    }
    if (levels_.empty()) return &(root_ = Json(std::forward<T>(value)));
    Level& level = levels_.back();
    if (level.value->is_array()) {
      auto& items = level.value->get_ref<Json::array_t&>();
      return &items.emplace_back(std::forward<T>(value));
    }
    Json& slot = member(level.value->get_ref<Json::object_t&>(), level.slot).second;
    return &(slot = Json(std::forward<T>(value)));
  }
  template <class T>
  bool put(T&& value) {
    return place(std::forward<T>(value)) != nullptr;
  }
  bool open(Json container) {
    if (static_cast<int>(levels_.size()) >= limits_.depth_max) {
      problem_ = "JSON nested deeper than " + std::to_string(limits_.depth_max) + " levels";
      return false;
    }
    if (!large()) return false;
    Json* const value = place(std::move(container));
    if (value == nullptr) return false;
    levels_.push_back({.value = value});
    return true;
  }
  bool close() {
    levels_.pop_back();
    return true;
  }

  const JsonLimits& limits_;
  Json root_;
  std::vector<Level> levels_;
  std::size_t values_ = 0, keys_ = 0, large_ = 0;
  std::string problem_;
};

}  // namespace

std::size_t json_text_bytes(const Json& json) {
  if (json.is_string()) return json.get_ref<const std::string&>().size();
  std::size_t bytes = 0;
  if (json.is_array())
    for (const Json& item : json) bytes += json_text_bytes(item);
  if (json.is_object())
    for (const auto& [key, value] : json.items()) bytes += key.size() + json_text_bytes(value);
  return bytes;
}

Result<Json> parse_json(std::string_view text, const JsonLimits& limits) {
  JsonBuilder builder(limits);
  if (!Json::sax_parse(text, &builder)) return Error{Code::invalid, builder.problem()};
  return builder.take();
}

}  // namespace quire
