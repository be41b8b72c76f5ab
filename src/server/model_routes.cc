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
          {"state", "loaded"},
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
  return {{"name", "models/" + name},
          {"version", "1"},
          {"displayName", name},
          {"inputTokenLimit", server.runtime().context()},
          {"outputTokenLimit", server.runtime().context()},
          {"supportedGenerationMethods",
           {"generateContent", "countTokens", "createCachedContent", "embedContent"}}};
}

// A model that another server has, or none yet.
Json other_entry(const ServedModel& e) {
  return {{"id", e.name},
          {"object", "model"},
          {"created", e.created},
          {"owned_by", "local"},
          {"root", e.name},
          {"parent", nullptr},
          {"max_model_len", e.context},
          {"permission", Json::array()},
          {"type", "model"},
          {"display_name", e.name},
          {"created_at", rfc3339(e.created * 1'000'000'000)},
          {"lifecycle", "active"},
          {"max_input_tokens", e.context},
          {"max_tokens", e.context}};
}

Json other_gemini_entry(const ServedModel& e) {
  return {{"name", "models/" + e.name},
          {"version", "1"},
          {"displayName", e.name},
          {"inputTokenLimit", e.context},
          {"outputTokenLimit", e.context},
          {"supportedGenerationMethods",
           {"generateContent", "countTokens", "createCachedContent", "embedContent"}}};
}

// Where there are several models: whether its weights are in memory, how far loading is, why it failed.
void add_state(Json& entry, const ServedModel& e) {
  entry["state"] = state_name(e.state);
  entry["weights_bytes"] = e.bytes;
  if (e.state == ModelState::loading) entry["progress"] = e.progress;
  if (!e.problem.empty()) entry["problem"] = e.problem;
}

}  // namespace

void get_models(Server& server, std::shared_ptr<Call> call) {
  Json data = Json::array(), models = Json::array();
  const auto others =
      server.options().catalog ? server.options().catalog() : std::vector<ServedModel>();
  std::vector<std::string> names = server.options().models;
  for (const AdapterInfo& adapter : server.runtime().adapters().list())
    names.push_back(adapter.name);
  for (const std::string& name : names) {
    data.push_back(model_entry(server, name));
    models.push_back(gemini_entry(server, name));
    for (const ServedModel& e : others)
      if (e.name == name) add_state(data.back(), e);
  }
  for (const ServedModel& e : others) {
    if (server.serves(e.name)) continue;
    data.push_back(other_entry(e));
    add_state(data.back(), e);
    models.push_back(other_gemini_entry(e));
  }
  call->respond({{"object", "list"},
                 {"has_more", false},
                 {"first_id", data.front()["id"]},
                 {"last_id", data.back()["id"]},
                 {"data", std::move(data)},
                 {"models", std::move(models)}});
}

void get_model(Server& server, std::shared_ptr<Call> call) {
  const std::string& name = call->arguments.front();
  const auto others =
      server.options().catalog ? server.options().catalog() : std::vector<ServedModel>();
  for (const ServedModel& e : others) {
    if (e.name != name) continue;
    const bool own = server.serves(name);
    Json body = own ? model_entry(server, name) : other_entry(e);
    body.update(own ? gemini_entry(server, name) : other_gemini_entry(e));
    add_state(body, e);
    return call->respond(body);
  }
  if (!server.serves(name))
    return call->refuse(
        not_found("the model '" + name + "' is not served here", "model_not_found"));
  Json body = model_entry(server, name);
  body.update(gemini_entry(server, name));
  call->respond(body);
}

}  // namespace quire
