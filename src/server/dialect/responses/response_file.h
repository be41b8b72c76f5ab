// server/dialect/responses/response_file.h - a stored response as a file: whose it is, its id, until
// when it stays, and its JSON.
//
//   const std::string bytes = encode_response({.tenant = "acme", .id = "resp_1", .response = r});
//   TRY(const ResponseFile file, decode_response(bytes));     // a damaged file is an error
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace quire::responses {

struct StoredResponse {
  std::string json;            // see server/dialect/responses/turn.h
  std::int64_t expires_s = 0;  // seconds since 1970
};

struct ResponseFile {
  std::string tenant, id;
  StoredResponse response = {};
};

std::string encode_response(const ResponseFile& file);
Result<ResponseFile> decode_response(std::string_view bytes);
// The name that its file has in the folder. Nothing that a client chose is part of it.
std::string response_file_name(std::string_view tenant, std::string_view id);

}  // namespace quire::responses
