// cli/template_option.h - --chat-template FILE, for commands that answer as the model's chat does.
//
//   TemplateOption chat_template;               // of the command's options
//   chat_template.add(app);
//   TRY(const ChatTemplate* chat, chat_template.find(runtime));   // the file's, or the model's
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "engine/runtime.h"

namespace quire::cli {

class TemplateOption {
 public:
  void add(CLI::App& app);
  // Null where neither the file nor the model has one. Lives as long as this and the runtime.
  Result<const ChatTemplate*> find(const Runtime& runtime);

 private:
  std::string file_;
  std::optional<ChatTemplate> own_;
};

}  // namespace quire::cli
