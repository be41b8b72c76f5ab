#include "text/jinja/callable.h"

#include <algorithm>

namespace quire::jinja {

void Args::bind(std::initializer_list<std::string_view> names, std::size_t required) {
  if (positional.size() > names.size())
    fail("'" + std::string(who) + "' takes at most " + std::to_string(names.size()) +
         " arguments, " + std::to_string(positional.size()) + " were given");
  bound_.assign(names.size(), nullptr);
  for (std::size_t i = 0; i < positional.size(); ++i) bound_[i] = &positional[i];
  for (const auto& [name, value] : named) {
    const auto* at = std::find(names.begin(), names.end(), name);
    if (at == names.end())
      fail("'" + std::string(who) + "' takes no argument named '" + name + "'");
    const auto i = static_cast<std::size_t>(at - names.begin());
    if (bound_[i]) fail("'" + std::string(who) + "' got '" + name + "' twice");
    bound_[i] = &value;
  }
  for (std::size_t i = 0; i < required; ++i)
    if (!bound_[i])
      fail("'" + std::string(who) + "' needs the argument '" + std::string(names.begin()[i]) + "'");
}

const Str& Args::str(std::size_t i) const {
  const Value& v = *bound_[i];
  if (const auto* u = v.as<Undefined>()) fail_undefined(*u);
  if (!v.str()) fail("'" + std::string(who) + "' needs a string, not " + std::string(type_name(v)));
  return *v.str();
}

Int Args::integer(std::size_t i, Int fallback) const {
  return bound_[i] && !bound_[i]->is_none() ? to_int(*bound_[i]) : fallback;
}

bool Args::flag(std::size_t i, bool fallback) const {
  return bound_[i] ? truthy(*bound_[i]) : fallback;
}

}  // namespace quire::jinja
