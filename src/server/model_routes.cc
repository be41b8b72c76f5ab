// The models that are served. The clients of all dialects ask for them here: one body has what each
// of them reads.
#include <fmt/core.h>

#include "engine/plan.h"
#include "server/routes.h"

namespace quire {
namespace {

Json storable_formats(const Runtime& r) {
  Json names = Json::array();
  for (const Format* f : formats())
    if (r.check_storage(f).ok()) names.push_back(f->name);
  return names;
}

Json model_entry(Server& server, const std::string& name) {
  const Runtime& r = server.runtime();
  const std::optional<AdapterInfo> adapter = r.adapters().info(name);
  return {{"id", name},
          {"object", "model"},
          {"created", adapter ? adapter->created : server.model_created()},
          {"owned_by", "local"},
          {"root", adapter ? name : server.model()},
          {"parent", adapter ? Json(server.model()) : Json()},
          {"max_model_len", r.context()},
          {"permission", Json::array()},
          {"type", "model"},
          {"display_name", name},
          {"created_at", rfc3339(server.model_created() * 1'000'000'000)},
          {"lifecycle", "active"},
          {"files", server.model_files_changed() ? "changed" : "as loaded"},
          {"max_input_tokens", r.context()},
          {"max_tokens", r.context()},
          {"kv",
           {{"block_size", r.geometry().tokens_per_block},
            {"bytes_per_token",
             make_plan(r.geometry(), {.context = r.context(), .concurrency = 1}).bytes_per_token},
            {"formats", storable_formats(r)},
            {"default_format", r.kv_format()}}}};
}

Json gemini_entry(Server& server, const std::string& name) {
  return {
      {"name", "models/" + name},
      {"version", "1"},
      {"displayName", name},
      {"inputTokenLimit", server.runtime().context()},
      {"outputTokenLimit", server.runtime().context()},
      {"supportedGenerationMethods", {"generateContent", "countTokens", "createCachedContent"}}};
}

}  // namespace

void get_models(Server& server, std::shared_ptr<Call> call) {
  Json data = Json::array(), models = Json::array();
  std::vector<std::string> names = server.options().models;
  for (const AdapterInfo& adapter : server.runtime().adapters().list())
    names.push_back(adapter.name);
  for (const std::string& name : names) {
    data.push_back(model_entry(server, name));
    models.push_back(gemini_entry(server, name));
  }
  call->respond({{"object", "list"},
                 {"has_more", false},
                 {"first_id", names.front()},
                 {"last_id", names.back()},
                 {"data", std::move(data)},
                 {"models", std::move(models)}});
}

void get_model(Server& server, std::shared_ptr<Call> call) {
  const std::string& name = call->arguments.front();
  if (!server.serves(name))
    return call->refuse(
        not_found("the model '" + name + "' is not served here", "model_not_found"));
  Json body = model_entry(server, name);
  body.update(gemini_entry(server, name));
  call->respond(body);
}

}  // namespace quire
