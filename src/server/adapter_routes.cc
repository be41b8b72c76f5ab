// Adapters over HTTP: loading and unloading as vLLM's clients do it, and llama-server's list with
// scales. Which adapters a request has.
#include <fmt/core.h>

#include <algorithm>
#include <filesystem>

#include "server/routes.h"

namespace quire {
namespace {

ApiError adapter_error(const Error& error, const std::string& param) {
  ApiError e = from_error(error, param);
  if (error.code == Code::not_found) {
    e.status = 404;
    e.code = param == "lora_path" ? "not_found" : "model_not_found";
  }
  if (error.code == Code::exhausted) {
    e.status = 429;
    e.type = "rate_limit_error";
    e.code = "adapter_memory";
    e.retry_after_s = 1;
  }
  return e;
}

// What a file has wrong is told by its name in the folder, not by its path on this machine.
Error without_folder(Error error, const std::string& folder) {
  const std::string in = folder.ends_with('/') ? folder : folder + '/';
  for (std::size_t at; (at = error.message.find(in)) != error.message.npos;)
    error.message.erase(at, in.size());
  return error;
}

std::string canonical_folder(const std::string& folder) {
  std::error_code ignored;
  return std::filesystem::canonical(folder, ignored).string();
}

Json info_json(const AdapterInfo& a) {
  return {{"id", a.id},         {"name", a.name},           {"path", a.path},
          {"scale", a.scale},   {"rank", a.rank},           {"bytes", a.bytes},
          {"digest", a.digest}, {"in_memory", a.in_memory}, {"alora", a.late}};
}

}  // namespace

std::optional<ApiError> Server::choose_adapters(GenerationRequest& asked) const {
  Adapters& adapters = runtime().adapters();
  const bool by_model = adapters.has(asked.model);
  if (by_model && !asked.kv.adapter.empty() && asked.kv.adapter != asked.model)
    return bad_value("kv.adapter", "is another adapter than the model that the request names");
  const std::string name = by_model ? asked.model : asked.kv.adapter;
  if (!name.empty() && asked.kv.lora)
    return bad_value("lora",
                     "goes with the model's own name: the request names an adapter already");
  std::string names = name;
  Result<Adapters::Set> found = !name.empty()   ? adapters.find(name)
                                : asked.kv.lora ? adapters.find(*asked.kv.lora, names)
                                                : adapters.standing(names);
  if (!found.ok())
    return adapter_error(found.error(), by_model ? "model" : name.empty() ? "lora" : "kv.adapter");
  asked.kv.policy.adapters = std::move(found.value());
  asked.kv.policy.adapter_names = std::move(names);
  return std::nullopt;
}

void post_load_adapter(Server& server, std::shared_ptr<Call> call) {
  server.with_json(call, [&server, call](const Json& body) {
    Fields f(body);
    const std::string name = f.text("lora_name", 256).value_or(""),
                      path = f.text("lora_path", 4096).value_or("");
    const bool replace = f.boolean("load_inplace").value_or(false);
    if (name.empty()) f.refuse("lora_name", "is required");
    if (path.empty()) f.refuse("lora_path", "is required: a folder or file in that of --lora-dir");
    const auto& models = server.options().models;
    if (std::ranges::find(models, name) != models.end())
      f.refuse("lora_name", "is a name of the model itself; take another");
    if (f.failed()) return post_refusal(call, f.error());
    Adapters& adapters = server.runtime().adapters();
    if (!server.runtime().executor().traits().adapters)
      return post_refusal(call, {.status = 501,
                                 .message = "adapters are computed on the CPU only",
                                 .code = "not_implemented"});
    const Status loaded = adapters.load_inside(name, path, replace);
    if (!loaded.ok())
      return post_refusal(
          call,
          adapter_error(without_folder(loaded.error(), canonical_folder(adapters.options().folder)),
                        loaded.error().code == Code::invalid ? "lora_name" : "lora_path"));
    post_answer(call, {{"status", "success"},
                       {"message", fmt::format("LoRA adapter '{}' was loaded.", name)}});
  });
}

void post_unload_adapter(Server& server, std::shared_ptr<Call> call) {
  server.with_json(call, [&server, call](const Json& body) {
    Fields f(body);
    const std::string name = f.text("lora_name", 256).value_or("");
    if (name.empty()) f.refuse("lora_name", "is required");
    if (f.failed()) return post_refusal(call, f.error());
    if (const Status gone = server.runtime().adapters().unload(name); !gone.ok())
      return post_refusal(call, adapter_error(gone.error(), "lora_name"));
    post_answer(call, {{"status", "success"},
                       {"message", fmt::format("LoRA adapter '{}' was unloaded; requests that have "
                                               "it go on to their end.",
                                               name)}});
  });
}

void get_lora_adapters(Server& server, std::shared_ptr<Call> call) {
  Json all = Json::array();
  for (const AdapterInfo& a : server.runtime().adapters().list()) all.push_back(info_json(a));
  call->respond(all);
}

void post_lora_adapters(Server& server, std::shared_ptr<Call> call) {
  server.with_json(call, [&server, call](const Json& body) {
    std::vector<ScaledAdapter> scales;
    const ApiError wrong = bad_value("", "the body must be a list of objects with id and scale");
    if (!body.is_array() || body.size() > AdapterSet::kPartsMax) return post_refusal(call, wrong);
    for (const Json& one : body) {
      if (!one.is_object()) return post_refusal(call, wrong);
      Fields f(one);
      const auto id = f.integer("id", 0, 0xffffffffll);
      const auto scale = f.number("scale", -1e6, 1e6);
      if (!id || !scale) f.refuse(id ? "scale" : "id", "is required");
      if (f.failed()) return post_refusal(call, f.error());
      scales.push_back({static_cast<std::uint32_t>(*id), static_cast<float>(*scale)});
    }
    if (const Status set = server.runtime().adapters().set_standing(scales); !set.ok())
      return post_refusal(call, adapter_error(set.error(), "id"));
    post_answer(call, {{"success", true}});
  });
}

}  // namespace quire
