#include "cli/template_option.h"

#include "base/file.h"
#include "cli/help.h"

namespace quire::cli {

void TemplateOption::add(CLI::App& app) {
  app.add_option("--chat-template", file_, "use this Jinja file instead of the model's template")
      ->group(kRare);
}

Result<const ChatTemplate*> TemplateOption::find(const Runtime& runtime) {
  if (file_.empty()) return runtime.chat_template();
  TRY(std::string text, read_file(file_));
  TRY(own_, ChatTemplate::parse(std::move(text)));
  return &*own_;
}

}  // namespace quire::cli
