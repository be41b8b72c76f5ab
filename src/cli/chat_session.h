// cli/chat_session.h - the session of `quire chat --session NAME`: saved after every turn, in the
// cache folder.
//
// Without a name every call does nothing. The file has the text alone: its blocks are in the same
// folder, where the next start finds them.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "base/json.h"
#include "engine/runtime.h"
#include "engine/session_store.h"
#include "engine/sessions.h"

namespace quire::cli {

class ChatSession {
 public:
  explicit ChatSession(Runtime& runtime);

  // What save() was given when it was last saved; null: it begins now.
  Result<Json> open(const std::string& name);
  // For the request that reads this prompt; null without a session.
  Result<std::shared_ptr<SessionTurn>> begin(std::span<const TokenId> prompt);
  Status save(const Json& said);
  void undo();
  Status fork(const std::string& name);
  void print() const;

 private:
  KvPolicy policy() const;

  Runtime& runtime_;
  SessionStore store_;
  std::shared_ptr<Sessions> sessions_ = std::make_shared<Sessions>();
  std::string name_;
};

}  // namespace quire::cli
