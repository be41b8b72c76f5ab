#include "cli/chat_session.h"

#include <fmt/core.h>

#include "cli/command.h"

namespace quire::cli {

// The thread that talks to the user is the engine's, too.
ChatSession::ChatSession(Runtime& runtime)
    : runtime_(runtime),
      store_(runtime, {.run = [&runtime](const std::function<void(Runtime&)>& f) -> Status {
               f(runtime);
               return {};
             }}) {}

KvPolicy ChatSession::policy() const {
  KvPolicy kv;
  kv.retain = runtime_.retain();
  kv.select = runtime_.select();
  return kv;
}

Result<Json> ChatSession::open(const std::string& name) {
  TRY_STATUS(check_save_name(name));
  name_ = name;
  auto loaded = store_.load("", name, name, [this](const std::string&) { return policy(); });
  if (!loaded.ok() && loaded.error().code == Code::not_found) return Json();
  if (!loaded.ok()) return loaded.error();
  TRY(Json said, parse_json(loaded.value().client, {.depth_max = 16}));
  TRY_STATUS(sessions_->create(std::move(loaded.value().session)));
  return said;
}

Result<std::shared_ptr<SessionTurn>> ChatSession::begin(std::span<const TokenId> prompt) {
  if (name_.empty()) return std::shared_ptr<SessionTurn>();
  return sessions_->begin("", name_, {.prompt = prompt, .kv = policy()});
}

Status ChatSession::save(const Json& said) {
  if (name_.empty()) return {};
  const Result<Session> session = sessions_->find("", name_);
  if (!session.ok()) return {};  // nothing was said yet
  const SaveOptions options{.client = said.dump(-1, ' ', false, Json::error_handler_t::replace),
                            .blocks = false};
  TRY_STATUS(store_.save(session.value(), name_, options));
  return {};
}

void ChatSession::undo() {
  if (!name_.empty()) (void)sessions_->truncate("", name_, {.last_turns = 1});
}

Status ChatSession::fork(const std::string& name) {
  if (name_.empty())
    return Error{Code::invalid, "this conversation has no name; start with --session NAME"};
  TRY_STATUS(check_save_name(name));
  TRY(const std::vector<SavedSession> there, store_.list(""));
  for (const SavedSession& s : there)
    if (s.name == name) return Error{Code::invalid, "there is a session " + name};
  if (sessions_->find("", name_).ok()) {
    TRY(const bool made, sessions_->fork("", name_, name, {}));
    if (!made) return Error{Code::invalid, "there is a session " + name};
  }
  name_ = name;
  return {};
}

void ChatSession::print() const {
  const auto all = store_.list("");
  if (!all.ok()) {
    fail(all.error());
    return;
  }
  if (all.value().empty()) fmt::print("no session has been saved\n");
  for (const SavedSession& s : all.value())
    fmt::print("{} {}\n", s.name == name_ ? '*' : ' ', s.name);
}

}  // namespace quire::cli
