// base/json_named.h - declares Json, for headers that only pass references to it.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace quire {

using Json = nlohmann::ordered_json;

}  // namespace quire
