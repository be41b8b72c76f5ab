#include "server/dialect/gemini/cached_routes.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>

#include "server/access_log.h"
#include "server/dialect/gemini/gemini_parse.h"
#include "server/prompt.h"
#include "server/prompt_run.h"

namespace quire {

extern const Dialect kGemini;

namespace gemini {
namespace {

constexpr std::int64_t kExpiryDefault = 3600ll * 1'000'000'000;
constexpr std::size_t kNameCharactersMax = 128, kPageDefault = 50, kPageMax = 1000;

Json content_json(const CachedContent& c) {
  Json out{{"name", c.name}, {"model", "models/" + c.model}};
  if (!c.display_name.empty()) out["displayName"] = c.display_name;
  out["createTime"] = rfc3339(c.created);
  out["updateTime"] = rfc3339(c.updated);
  out["expireTime"] = rfc3339(c.expires);
  out["usageMetadata"] = {{"totalTokenCount", c.tokens}};
  return out;
}

ApiError no_content(const Call& call) {
  return not_found("there is no cachedContents/" + call.arguments.front() +
                   ": it was deleted or has expired");
}

ApiError too_much(std::string message) {
  return {.status = 429,
          .message = std::move(message),
          .type = "rate_limit_error",
          .code = "pin_budget_exceeded",
          .retry_after_s = 1};
}

CachedContents& contents_of(Server& server) {
  return static_cast<CachedContents&>(*server.state_of(kGemini));
}

// What is asked to be cached.
struct Wanted {
  CachedContent content;
  Json body = Json::object();  // of `content`
};

std::optional<ApiError> parse_wanted(const Json& body, Wanted& out) {
  Fields f(body, {}, Fields::Spelling::either);
  const std::int64_t now = unix_now_ns();
  out.content.model = model_name(f.text("model", 1024).value_or(""));
  if (out.content.model.empty()) f.refuse("model", "is required", "missing_required_parameter");
  out.content.display_name = f.text("displayName", 4 * kNameCharactersMax).value_or("");
  const auto characters =
      std::ranges::count_if(out.content.display_name, [](char c) { return (c & 0xC0) != 0x80; });
  if (characters > static_cast<std::ptrdiff_t>(kNameCharactersMax))
    f.refuse("displayName", fmt::format("must have at most {} characters", kNameCharactersMax));
  out.content.expires = parse_expiry(f, now).value_or(now + kExpiryDefault);
  if (const Json* contents = f.find("contents"))
    out.body["contents"] = contents->is_object() ? Json::array({*contents}) : *contents;
  for (const char* name : {"systemInstruction", "tools", "toolConfig"})
    if (const Json* value = f.find(name)) out.body[name] = *value;
  if (out.body.empty())
    f.refuse("contents", "is required, or systemInstruction or tools",
             "missing_required_parameter");
  if (out.body.contains("contents") && !out.body["contents"].is_array())
    f.refuse("contents", "must be a list of contents");
  if (f.failed()) return f.error();
  return std::nullopt;
}

// The prompt of a request that begins with this content and goes on with `question`.
std::optional<ApiError> prompt_with(Server& server, Call& call, const Json& content,
                                    const char* question, GenerationRequest& asked, Prompt& out) {
  Json body = content;
  if (!body.contains("contents")) body["contents"] = Json::array();
  body["contents"].push_back({{"role", "user"}, {"parts", Json::array({{{"text", question}}})}});
  if (auto error = parse_conversation(body, server.parse_context(call), asked)) return error;
  asked.tokens_max = 0;
  std::vector<Prompt> prompts;
  if (auto error = make_prompts(asked, server.runtime(), prompts)) return error;
  out = std::move(prompts.front());
  return std::nullopt;
}

// The tokens that every request with this content begins with, whatever its template puts behind
// contents: those that two different questions have in common.
std::optional<ApiError> common_prompt(Server& server, Call& call, const Json& content,
                                      GenerationRequest& asked, Prompt& out) {
  GenerationRequest other;
  Prompt second;
  if (auto error = prompt_with(server, call, content, "A", asked, out)) return error;
  if (auto error = prompt_with(server, call, content, "7", other, second)) return error;
  const auto end = std::ranges::mismatch(out.tokens, second.tokens).in1;
  out.tokens.erase(end, out.tokens.end());
  const auto tokens = static_cast<std::uint32_t>(out.tokens.size());
  std::erase_if(out.segments, [&](const PromptSegment& s) { return s.begin >= tokens; });
  if (!out.segments.empty()) out.segments.back().end = tokens;
  return std::nullopt;
}

void release(Server& server, const std::optional<LeaseId>& lease) {
  if (!lease) return;
  server.service().post([id = *lease](EngineView& e) {
    if (!e.runtime.cache().release(id).ok()) return;  // somebody released it through /v1/kv/pins
  });
}

}  // namespace

void post_cached_content(Server& server, std::shared_ptr<Call> call) {
  server.with_json(call, [&server, call](const Json& body) {
    Wanted wanted;
    if (auto error = parse_wanted(body, wanted)) return post_refusal(call, std::move(*error));
    if (!server.serves(wanted.content.model))
      return post_refusal(call, not_found("models/" + wanted.content.model + " is not served here",
                                          "model_not_found"));
    GenerationRequest asked;
    Prompt prompt;
    if (auto error = common_prompt(server, *call, wanted.body, asked, prompt))
      return post_refusal(call, std::move(*error));
    Fields f(body, {}, Fields::Spelling::either);
    const ParseContext context = server.parse_context(*call);
    parse_kv(f, context.kv_header, context.kv, asked.kv);
    const auto tokens = static_cast<std::uint32_t>(prompt.tokens.size());
    const std::uint32_t least = std::max(server.options().cached_tokens_min, 1u);
    if (tokens < least)
      f.refuse("contents", fmt::format("have {} tokens; at least {} can be cached "
                                       "(--gemini-min-cached-tokens)",
                                       tokens, least));
    if (f.failed()) return post_refusal(call, f.error());
    wanted.content.tenant = call->caller.tenant;
    wanted.content.tokens = tokens;
    wanted.content.body = std::make_shared<const std::string>(dump(wanted.body));
    if (const Status room = contents_of(server).room_for(
            call->caller.tenant, wanted.content.body->size(), unix_now_ns());
        !room.ok())
      return post_refusal(call, too_much(room.error().message));

    const bool leased = tokens >= server.runtime().geometry().tokens_per_block;
    Request request = make_request(asked, prompt, server.runtime(), call->id);
    if (leased)
      request.kv.leases.push_back({.ttl = wanted.content.expires - unix_now_ns(),
                                   .pin = true,
                                   .label = "cachedContents " + wanted.content.display_name});
    run_prompt(
        server, call, std::move(request),
        [&server, call, leased, content = wanted.content](const Done& done) mutable {
          if (leased && (done.leases.empty() || done.leases.back() == LeaseId{}))
            return call->refuse(too_much(done.lease_problem.empty() ? "nothing could be pinned"
                                                                    : done.lease_problem));
          if (leased) content.lease = done.leases.back();
          const auto lease = content.lease;
          auto added = contents_of(server).add(std::move(content), unix_now_ns());
          if (added.ok()) return call->respond(content_json(added.value()));
          release(server, lease);
          call->refuse(too_much(added.error().message));
        });
  });
}

void get_cached_contents(Server& server, std::shared_ptr<Call> call) {
  const std::string wanted = call->request().parameter("pageSize").value_or("");
  std::size_t limit = kPageDefault;
  std::from_chars(wanted.data(), wanted.data() + wanted.size(), limit);
  limit = std::clamp<std::size_t>(limit, 1, kPageMax);
  const std::string after = call->request().parameter("pageToken").value_or("");
  const auto page = contents_of(server).list(call->caller.tenant, after, limit + 1, unix_now_ns());
  Json out{{"cachedContents", Json::array()}};
  for (std::size_t i = 0; i < std::min(limit, page.size()); ++i)
    out["cachedContents"].push_back(content_json(page[i]));
  if (page.size() > limit) out["nextPageToken"] = page[limit - 1].name;
  call->respond(out);
}

void get_cached_content(Server& server, std::shared_ptr<Call> call) {
  const auto found =
      contents_of(server).find(call->caller.tenant, call->arguments.front(), unix_now_ns());
  if (!found) return call->refuse(no_content(*call));
  call->respond(content_json(*found));
}

void patch_cached_content(Server& server, std::shared_ptr<Call> call) {
  server.with_json(call, [&server, call](const Json& body) {
    Fields f(body, {}, Fields::Spelling::either);
    const std::int64_t now = unix_now_ns();
    const auto expires = parse_expiry(f, now);
    if (!expires) f.refuse("ttl", "or expireTime is required: nothing else can be changed");
    for (const char* name : {"name", "model"}) f.find(name);
    f.refuse_unknown();
    if (f.failed()) return post_refusal(call, f.error());
    const auto changed =
        contents_of(server).set_expiry(call->caller.tenant, call->arguments.front(), *expires, now);
    if (!changed) return post_refusal(call, no_content(*call));
    server.with_engine(
        call,
        [lease = changed->lease, ttl = *expires - now](EngineView& e) {
          return lease ? e.runtime.cache().extend(*lease, ttl) : Status();
        },
        [call, changed = *changed](const Status&) { call->respond(content_json(changed)); });
  });
}

void delete_cached_content(Server& server, std::shared_ptr<Call> call) {
  const auto removed =
      contents_of(server).remove(call->caller.tenant, call->arguments.front(), unix_now_ns());
  if (!removed) return call->refuse(no_content(*call));
  server.with_engine(
      call,
      [lease = removed->lease](EngineView& e) {
        return lease ? e.runtime.cache().release(*lease) : Status();
      },
      [call](const Status&) { call->respond(Json::object()); });
}

bool names_cached_content(const Json& body) {
  return body.is_object() && (body.contains("cachedContent") || body.contains("cached_content"));
}

std::optional<ApiError> take_cached_content(Server& server, const Call& call,
                                            const std::string& model, Json& body,
                                            std::optional<CachedContent>& taken) {
  Fields f(body, {}, Fields::Spelling::either);
  const auto name = f.text("cachedContent", 256);
  if (f.failed()) return f.error();
  if (!name) return std::nullopt;
  taken = contents_of(server).find(call.caller.tenant, *name, unix_now_ns());
  if (!taken)
    return ApiError{.status = 403,
                    .message = "CachedContent not found (or permission denied)",
                    .type = "permission_error",
                    .code = "cached_content_not_found",
                    .param = "cachedContent"};
  if (taken->model != model)
    return bad_value("cachedContent", "is of models/" + taken->model + ", not of models/" + model);
  const auto cached = parse_json(*taken->body);
  if (!cached.ok()) return internal_error();
  return without_cache(body, cached.value());
}

}  // namespace gemini
}  // namespace quire
