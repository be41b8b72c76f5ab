// server/model_of_request.h - which model a request is for, before anything else of it is understood.
// For a server of several models (server/model_house.h).
#pragma once

#include <string>
#include <string_view>

#include "net/http.h"

namespace quire {

// In this order: the path (/models/NAME:verb), ?model=, and the body's "model". Empty: it says none, or
// the body is not JSON. Reading a body takes time in proportion to what comes before its "model".
std::string model_of_request(const HttpRequest& request);
// The same without the body.
std::string model_of_target(const HttpRequest& request);
// The "model" at the top of a JSON object; empty: there is none.
std::string model_of_body(std::string_view body);

}  // namespace quire
