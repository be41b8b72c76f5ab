// cli/text_commands.cc - `quire tokenize`, `detokenize` and `template`: the text side of a model,
// without its weights.
#include <fmt/core.h>

#include <iostream>
#include <iterator>

#include "base/file.h"
#include "cli/command.h"
#include "cli/model_options.h"
#include "engine/text_parts.h"
#include "text/chat_template.h"

namespace quire::cli {
namespace {

struct TextCommandsOptions {
  std::string model, named, text, tokens, messages, template_file;
  bool json = false, special = false, add_special = false, pieces = false, no_prompt = false;
};

Result<TextParts> open_text(const std::string& model) {
  TRY(const std::string path, find_model(model));
  TRY(const ModelSource source, ModelSource::open(path));
  return read_text_parts(source);
}

std::string given_or_stdin(const std::string& given) {
  return given.empty() ? std::string(std::istreambuf_iterator<char>(std::cin), {}) : given;
}

int tokenize(TextCommandsOptions& o) {
  auto told = tell_text_from_model(o.model, o.text, o.named);
  if (!told.ok()) return fail(told.error());
  o.text = std::move(told.value().text);
  const auto text = open_text(told.value().model);
  if (!text.ok()) return fail(text.error());
  const Tokenizer& t = text.value().tokenizer;
  const std::vector<TokenId> ids =
      t.encode(given_or_stdin(o.text), {.parse_special = o.special, .add_special = o.add_special});
  if (o.json) {
    Json out{{"tokens", ids}, {"count", ids.size()}};
    if (o.pieces) {
      out["pieces"] = Json::array();
      for (const TokenId id : ids) out["pieces"].push_back(t.piece(id));
    }
    print_json(out);
    return kOk;
  }
  for (const TokenId& id : ids) {
    if (o.pieces)
      fmt::print("{:>7}  {}\n", id,
                 Json(t.piece(id)).dump(-1, ' ', false, Json::error_handler_t::replace));
    else
      fmt::print("{}{}", &id == ids.data() ? "" : ",", id);
  }
  if (!o.pieces) fmt::print("\n");
  return kOk;
}

int detokenize(const TextCommandsOptions& o) {
  const auto text = open_text(o.model);
  if (!text.ok()) return fail(text.error());
  const auto ids = parse_tokens(o.tokens);
  if (!ids.ok()) return fail(ids.error());
  const std::string decoded =
      text.value().tokenizer.decode(ids.value(), {.skip_special = !o.special});
  if (o.json)
    print_json({{"content", decoded}});
  else
    fmt::print("{}\n", decoded);
  return kOk;
}

Result<std::string> render(const TextCommandsOptions& o) {
  TRY(const std::string source, o.messages.starts_with('@')
                                    ? read_file(o.messages.substr(1))
                                    : Result<std::string>(given_or_stdin(o.messages)));
  TRY(Json context, parse_json(source));
  if (context.is_array()) context = Json{{"messages", context}};
  if (!context.is_object())
    return Error{Code::invalid,
                 "messages must be a JSON array, or an object with template variables"};
  if (!context.contains("add_generation_prompt")) context["add_generation_prompt"] = !o.no_prompt;
  if (!o.template_file.empty()) {
    TRY(std::string text, read_file(o.template_file));
    TRY(const ChatTemplate chat, ChatTemplate::parse(std::move(text)));
    return chat.render(context);
  }
  TRY(const TextParts text, open_text(o.model));
  if (!text.chat_template)
    return Error{Code::invalid, text.template_problem.empty() ? "this model has no chat template"
                                                              : text.template_problem};
  const Tokenizer& t = text.tokenizer;
  if (!context.contains("bos_token")) context["bos_token"] = t.piece(t.bos());
  if (!context.contains("eos_token")) context["eos_token"] = t.piece(t.eos());
  return text.chat_template->render(context);
}

int template_command(const TextCommandsOptions& o) {
  const auto text = render(o);
  if (!text.ok()) return fail(text.error());
  if (o.json)
    print_json({{"prompt", text.value()}});
  else
    fmt::print("{}", text.value());
  return kOk;
}

std::function<int()> declare_tokenize(CLI::App& app) {
  auto o = std::make_shared<TextCommandsOptions>();
  app.add_option("MODEL", o->model, "GGUF file or Hugging Face folder");
  app.add_option("-m,--model", o->named, "the same as MODEL");
  app.add_option("TEXT", o->text, "text; stdin when absent");
  app.add_flag("--special", o->special, "read control tokens in the text");
  app.add_flag("--add-special", o->add_special, "add BOS and EOS where the model asks for them");
  app.add_flag("--pieces", o->pieces, "show what each token stands for");
  app.add_flag("--json", o->json, "print one JSON object");
  return [o] { return tokenize(*o); };
}

std::function<int()> declare_detokenize(CLI::App& app) {
  auto o = std::make_shared<TextCommandsOptions>();
  app.add_option("-m,--model,MODEL", o->model, "GGUF file or Hugging Face folder");
  app.add_option("--tokens", o->tokens, "1,2,3 or @FILE (JSON array)")->required();
  app.add_flag("--special", o->special, "show control tokens");
  app.add_flag("--json", o->json, "print one JSON object");
  return [o] { return detokenize(*o); };
}

std::function<int()> declare_template(CLI::App& app) {
  auto o = std::make_shared<TextCommandsOptions>();
  app.add_option("-m,--model,MODEL", o->model, "GGUF file or Hugging Face folder");
  app.add_option("--messages", o->messages,
                 "JSON array of messages, or object of variables; @FILE, or stdin");
  app.add_option("--chat-template", o->template_file, "use this Jinja file instead of the model's");
  app.add_flag("--no-generation-prompt", o->no_prompt, "do not open the assistant's turn");
  app.add_flag("--json", o->json, "print one JSON object");
  return [o] { return template_command(*o); };
}

}  // namespace

extern const Command kTokenize = {
    "tokenize", "text to token numbers",
    "examples:\n  quire tokenize \"Hello\" --pieces           the default model\n"
    "  quire tokenize model.gguf --json < book.txt",
    declare_tokenize};
extern const Command kDetokenize = {"detokenize", "token numbers to text",
                                    "example:\n  quire detokenize model.gguf --tokens 19556,905",
                                    declare_detokenize};
extern const Command kTemplate = {
    "template", "render a conversation with the model's chat template",
    "example:\n  quire template model.gguf --messages '[{\"role\":\"user\",\"content\":\"Hi\"}]'",
    declare_template};

}  // namespace quire::cli
