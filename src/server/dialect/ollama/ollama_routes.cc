#include "server/dialect/ollama/ollama_routes.h"

#include <fmt/core.h>

#include "server/access_log.h"
#include "server/answer_format/answer_format.h"

namespace quire::ollama {
namespace {

// Tools ask for the version of Ollama and refuse old ones. This is the one whose API is spoken here;
// ours is beside it.
constexpr std::string_view kApiVersion = "0.12.6";
constexpr std::int64_t kCentury = 100ll * 365 * 86400 * 1'000'000'000;

// Changes when answers may.
std::string digest_of(const Server& server) {
  std::string out;
  for (const auto byte : sha256(server.model() + server.fingerprint()))
    out += fmt::format("{:02x}", static_cast<unsigned>(byte));
  return out;
}

Json details(const Server& server) {
  const std::string& family = server.runtime().config().architecture;
  return {{"parent_model", ""},
          {"format", server.runtime().source().is_gguf() ? "gguf" : "safetensors"},
          {"family", family},
          {"families", Json::array({family})},
          {"parameter_size", ""},
          {"quantization_level", "unknown"}};
}

Json entry(const Server& server, const std::string& name) {
  return {{"name", name},
          {"model", name},
          {"modified_at", rfc3339(server.model_created() * 1'000'000'000)},
          {"size", server.runtime().source().tensor_bytes()},
          {"digest", digest_of(server)},
          {"details", details(server)}};
}

Json model_info(const Server& server) {
  const ModelConfig& c = server.runtime().config();
  const std::string& a = c.architecture;
  return {{"general.architecture", a},
          {"general.basename", c.name},
          {a + ".block_count", c.layers},
          {a + ".context_length", server.runtime().context()},
          {a + ".embedding_length", c.hidden},
          {a + ".attention.head_count", c.query_heads},
          {a + ".attention.head_count_kv", c.kv_heads},
          {a + ".vocab_size", c.vocabulary}};
}

}  // namespace

std::string served_name(const Server& server, const std::string& name) {
  constexpr std::string_view kLatest = ":latest";
  if (server.serves(name) || !name.ends_with(kLatest)) return name;
  const std::string untagged = name.substr(0, name.size() - kLatest.size());
  return server.serves(untagged) ? untagged : name;
}

ApiError no_model(const std::string& name) {
  return not_found("model '" + name + "' not found", "model_not_found");
}

void get_tags(Server& server, std::shared_ptr<Call> call) {
  Json models = Json::array();
  for (const std::string& name : server.options().models) models.push_back(entry(server, name));
  if (server.options().catalog)
    for (const ServedModel& e : server.options().catalog())
      if (!server.serves(e.name))
        models.push_back({{"name", e.name},
                          {"model", e.name},
                          {"modified_at", rfc3339(e.created * 1'000'000'000)},
                          {"size", e.bytes}});
  call->respond({{"models", std::move(models)}});
}

void get_running(Server& server, std::shared_ptr<Call> call) {
  Json model = entry(server, server.model());
  const bool gpu = server.runtime().executor().traits().device != DeviceKind::cpu;
  model["size_vram"] = gpu ? model["size"] : Json(0);
  model["context_length"] = server.runtime().context();
  model["expires_at"] = rfc3339(unix_now_ns() + kCentury);  // it stays
  call->respond({{"models", Json::array({std::move(model)})}});
}

void post_show(Server& server, std::shared_ptr<Call> call) {
  server.with_json(call, [&server, call](const Json& body) {
    Fields f(body);
    std::string name = f.text("model", 1024).value_or("");
    if (name.empty()) name = f.text("name", 1024).value_or("");
    if (name.empty()) f.refuse("model", "is required", "missing_required_parameter");
    if (f.failed()) return post_refusal(call, f.error());
    name = served_name(server, name);
    if (!server.serves(name)) return post_refusal(call, no_model(name));
    const ChatTemplate* const chat = server.runtime().chat_template();
    const SamplingOptions& s = server.sampling().options;
    Json capabilities = Json::array({"completion"});
    if (chat != nullptr) capabilities.push_back("tools");
    if (chat != nullptr &&
        answer_format(chat->source(), server.options().parsers).reasoning != nullptr)
      capabilities.push_back("thinking");
    post_answer(call,
                {{"modified_at", rfc3339(server.model_created() * 1'000'000'000)},
                 {"license", ""},
                 {"modelfile", "FROM " + name + "\n"},
                 {"parameters",
                  fmt::format("temperature {:.4g}\ntop_k {}\ntop_p {:.4g}\nmin_p "
                              "{:.4g}\nrepeat_penalty {:.4g}",
                              s.temperature, s.top_k, s.top_p, s.min_p, s.repetition_penalty)},
                 {"template", chat ? chat->source() : std::string()},
                 {"details", details(server)},
                 {"model_info", model_info(server)},
                 {"capabilities", std::move(capabilities)}});
  });
}

void get_api_version(Server& server, std::shared_ptr<Call> call) {
  call->respond({{"version", kApiVersion}, {"quire", server.options().version}});
}

}  // namespace quire::ollama
