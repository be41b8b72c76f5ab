// base/json_named.h - the name of a JSON value, for headers that pass references to one on.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace quire {

using Json = nlohmann::ordered_json;

}  // namespace quire
