#include "text/chat_template.h"

#include <algorithm>

#include "base/json.h"
#include "text/jinja/parser.h"
#include "text/jinja/runtime.h"

namespace quire {

struct ChatTemplate::Parsed {
  std::string source;
  jinja::Block block;
};

namespace {
using jinja::Origin;
using jinja::Value;

Value to_value(const Json& json, Origin origin, int depth = 0) {
  if (depth > jinja::kValueDepthMax) jinja::fail("the context is nested too deeply");
  switch (json.type()) {
    case Json::value_t::boolean:
      return Value(json.get<bool>());
    case Json::value_t::number_integer:
      return Value(jinja::Int{json.get<std::int64_t>()});
    case Json::value_t::number_unsigned:
      return Value(jinja::Int{json.get<std::uint64_t>()});
    case Json::value_t::number_float:
      return Value(json.get<double>());
    case Json::value_t::string:
      return jinja::make_str(json.get_ref<const std::string&>(), origin);
    case Json::value_t::array: {
      jinja::Vector<Value> items;
      for (const Json& item : json) items.push_back(to_value(item, origin, depth + 1));
      return jinja::make_list(std::move(items));
    }
    case Json::value_t::object: {
      jinja::Dict dict;
      for (const auto& [key, value] : json.items())
        dict.items.emplace_back(jinja::make_str(key, origin), to_value(value, origin, depth + 1));
      return jinja::make_dict(std::move(dict));
    }
    default:
      return Value();
  }
}

bool is_trusted_role(const Json& role) {
  return role.is_string() &&
         std::find(std::begin(kTrustedRoles), std::end(kTrustedRoles),
                   role.get_ref<const std::string&>()) != std::end(kTrustedRoles);
}

Value to_messages(const Json& json) {
  if (!json.is_array()) return to_value(json, Origin::data);
  jinja::Vector<Value> messages;
  for (const Json& message : json) {
    if (!message.is_object()) {
      messages.push_back(to_value(message, Origin::data, 1));
      continue;
    }
    const auto number = static_cast<std::uint32_t>(messages.size()) + 1;
    jinja::Dict dict;
    for (const auto& [key, value] : message.items()) {
      const bool trusted = key == "role" && is_trusted_role(value);
      const bool content = key == "content" && value.is_string();
      dict.items.emplace_back(
          jinja::make_str(key, Origin::data),
          content ? jinja::make_str(value.get_ref<const std::string&>(), Origin::data, number)
                  : to_value(value, trusted ? Origin::template_text : Origin::data, 2));
    }
    messages.push_back(jinja::make_dict(std::move(dict)));
  }
  return jinja::make_list(std::move(messages));
}

jinja::Scope to_scope(const Json& context) {
  jinja::Scope scope;
  for (const auto& [name, value] : context.items()) {
    const bool token = (name == "bos_token" || name == "eos_token") && value.is_string();
    scope.set(name, name == "messages"
                        ? to_messages(value)
                        : to_value(value, token ? Origin::template_text : Origin::data));
  }
  return scope;
}

std::tm local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm out{};
  localtime_r(&now, &out);
  return out;
}

Error to_error(const jinja::Failure& f) {
  const std::string_view what = f.own_words                   ? ""
                                : f.code == Code::unsupported ? "chat template: not supported: "
                                                              : "chat template: ";
  return Error{f.code, std::string(what) + f.message};
}

Result<jinja::Str> run(const jinja::Block& block, const Json& context, const RenderLimits& limits,
                       const std::function<std::tm()>& now) {
  if (!context.is_object())
    return Error{Code::invalid, "chat template: the context must be a JSON object"};
  jinja::Meter meter{limits.steps_max, limits.bytes_max + 8 * json_text_bytes(context)};
  const jinja::MeterScope metered(meter);
  try {
    jinja::Runtime runtime(to_scope(context), limits.depth_max, now ? now : local_time);
    return runtime.run(block);
  } catch (const jinja::Failure& f) {
    return to_error(f);
  }
}

}  // namespace

Result<ChatTemplate> ChatTemplate::parse(std::string source) {
  try {
    auto parsed = std::make_shared<Parsed>();
    parsed->block = jinja::parse_template(source);
    parsed->source = std::move(source);
    return ChatTemplate(std::move(parsed));
  } catch (const jinja::Failure& f) {
    return to_error(f);
  }
}

const std::string& ChatTemplate::source() const { return parsed_->source; }

Result<std::string> ChatTemplate::render(const Json& context, const RenderLimits& limits) const {
  TRY(const jinja::Str out, run(parsed_->block, context, limits, now));
  return std::string(out.text());
}

Result<std::vector<Segment>> ChatTemplate::render_segments(const Json& context,
                                                           const RenderLimits& limits) const {
  TRY(const jinja::Str out, run(parsed_->block, context, limits, now));
  std::vector<Segment> segments;
  std::size_t from = 0;
  for (const jinja::Str::Run& r : out.runs()) {
    segments.push_back({std::string(out.text().substr(from, r.end - from)),
                        r.origin == Origin::data, static_cast<int>(r.source) - 1});
    from = r.end;
  }
  return segments;
}

}  // namespace quire
