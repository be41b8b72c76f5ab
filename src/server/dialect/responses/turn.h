// server/dialect/responses/turn.h - what a request for a response leaves for its writer, and what is
// stored of a response.
//
// A stored response stands for itself: it has all items before it, so that others of its chain may be
// deleted or expire. Its JSON is {"items": [...], "response": {...}}.
#pragma once

#include <memory>
#include <string>

#include "base/json.h"
#include "server/dialect/responses/response_store.h"
#include "server/generation_request.h"

namespace quire::responses {

inline constexpr std::string_view kResponsePrefix = "resp_";

struct Turn final : DialectNotes {
  std::string tenant;
  std::shared_ptr<ResponseStore> store;  // null: the response is not stored
  Json echo = Json::object();            // fields of the response that repeat the request
  std::string items;                     // that it is made from: a JSON list
  std::size_t item_count = 0;
  bool prewarm = false;
  // comparison_response_id was there. GenerationRequest::compare_to is empty where it names nothing.
  bool compares = false;
};

// A stored response's JSON; null where it is not what this program writes.
Json read_stored(const StoredResponse& stored);

}  // namespace quire::responses
