// base/json_problem.h - what a JSON parser has to say, in words, for those who call the library
// themselves.
//
//   catch (const nlohmann::json::exception& e) { return "not JSON" + json_problem(e); }
//   // not JSON at line 1, column 3: unexpected end of input
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace quire {

std::string json_problem(const nlohmann::json::exception& exception);

}  // namespace quire
