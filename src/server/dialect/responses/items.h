// server/dialect/responses/items.h - the items that a response is made from, and the messages that they
// are to a model.
//
//   ItemReader reader{.body = fields, .response_id = "0a1b"};
//   reader.read(body["input"][0], "input[0]");
//   reader.items;        // with ids and contents in parts, as they are stored and listed
//   reader.messages;     // as OpenAI's chat has them: openai::read_messages() checks them
//
// An assistant's text and the calls that follow it are one message, as the model wrote them.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "server/fields.h"

namespace quire::responses {

struct ItemReader {
  Fields& body;             // gets the errors
  std::string response_id;  // without its prefix: ids of new items are made of it
  // The item of a stored response by its id, or null.
  std::function<Json(const std::string& id)> referred = {};

  Json items = Json::array(), messages = Json::array();
  std::vector<std::string> names = {};  // of messages, for errors
  std::set<std::string> calls = {};     // ids of function calls so far
  std::size_t text_left = 32 << 20;     // bytes of text that may still come

  void read(const Json& item, const std::string& where);
  void say(const char* role, const Json& content, const std::string& where);

 private:
  void read_message(const Json& item, const std::string& where);
  void read_call(const Json& item, const std::string& where);
  void read_output(const Json& item, const std::string& where);
  bool spend(const Json& content);  // false: there is more text than a prompt can have
  void keep(const Json& item, const char* prefix, Json fields);
};

// An item's id is the id of the response that it came with, and its number there.
std::string item_id(std::string_view prefix, std::string_view response_id, std::size_t number);
// The response that an item came with; empty where the id is none of ours.
std::string response_of_item(std::string_view item_id);

}  // namespace quire::responses
