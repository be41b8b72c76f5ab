// Routes that show or change the cache: stats, lookup, prefill, evict, clear.
#include "server/routes.h"

#include <fmt/core.h>

#include "engine/explain.h"
#include "engine/plan.h"
#include "server/kv_report.h"
#include "server/kv_select.h"
#include "server/kv_sessions.h"
#include "server/prompt.h"
#include "server/prompt_run.h"

namespace quire {
namespace {

std::string segment_at(const std::vector<PromptSegment>& segments, std::uint32_t token) {
  for (const PromptSegment& s : segments)
    if (token >= s.begin && token < s.end) return s.name;
  return {};
}

Json evicted_json(const Evicted& e) {
  return {{"blocks", e.blocks},
          {"bytes", e.bytes},
          {"skipped", {{"in_use", e.in_use}, {"pinned", e.pinned}}}};
}

// A tier below memory: what it holds, what it did, and how fast it is.
Json tier_json(const TierLinkStats& t) {
  return {{"name", t.name},
          {"capacity_bytes", t.capacity_bytes},
          {"used_bytes", t.tier.stored_bytes},
          {"open", t.tier.open != 0},
          {"blocks", {{"total", t.tier.records}}},
          {"read", {{"blocks", t.up.blocks}, {"bytes", t.up.bytes}, {"failed", t.failed_loads}}},
          {"written", {{"blocks", t.down.blocks}, {"bytes", t.down.bytes}}},
          {"refused", t.tier.refused + t.refused_blocks},
          {"corrupt", t.tier.corrupt},
          {"absent", t.tier.absent},
          {"failed", t.tier.failed},
          {"closings", t.tier.closings},
          {"reclaimed", t.tier.reclaimed_records},
          {"queue_bytes", {{"read", t.cost.queued_bytes}, {"write", t.write_queue_bytes}}},
          {"first_byte_ms", t.cost.first_byte_s * 1e3},
          {"bytes_per_s", t.cost.bytes_per_s}};
}

// evict and clear differ in what they drop without a selection, in whether they drop pins, and in that
// clear reaches the tiers, too.
void select_and_evict(Server& server, std::shared_ptr<Call> call, bool all_by_default) {
  server.with_json(call, [&server, call, all_by_default](const Json& body) {
    Fields f(body);
    auto selector = parse_selector(f, server, *call, all_by_default);
    const bool force = f.boolean("force").value_or(false);
    const bool dry_run = f.boolean("dry_run").value_or(false);
    if (const Json* tiers = f.find("tiers"))
      if (!tiers->is_array() || *tiers != Json::array({"cpu"}))
        f.refuse("tiers", "must be [\"cpu\"], which is all this server has", "tier_unavailable");
    if (f.failed()) return post_refusal(call, f.error());
    server.with_engine(
        call,
        [selector = std::move(selector), force, dry_run, clears = all_by_default](EngineView& e) {
          return evict_selected(e, selector, force, dry_run, clears);
        },
        [call](const Result<Evicted>& done) {
          if (!done.ok()) return call->refuse(from_error(done.error(), "select"));
          call->respond(evicted_json(done.value()));
        });
  });
}

}  // namespace

std::optional<ApiError> named_prompt(Server& server, Call& call, const Json& body,
                                     GenerationRequest& asked, Prompt& prompt) {
  asked.client = call.client();
  Fields f(body);
  const Dialect* dialect = call.dialect;
  if (const auto name = f.text("dialect", 32)) dialect = find_dialect(*name);
  if (f.failed()) return f.error();
  if (dialect == nullptr)
    return not_implemented("dialect " + body["dialect"].get<std::string>(), "dialect");
  const ParseContext context = server.parse_context(call, dialect);
  if (const Json* inner = f.find("request"); inner != nullptr && inner->is_object()) {
    Json request = *inner;
    if (!request.contains("model")) request["model"] = server.model();
    if (!request.contains("kv") && body.contains("kv")) request["kv"] = body["kv"];
    if (auto error = dialect->parse(request, context, asked)) return error;
  } else if (f.find("messages")) {
    if (auto error = dialect->parse_conversation(body, context, asked)) return error;
    parse_kv(f, context.kv_header, context.kv, asked.kv);
  } else if (const Json* tokens = f.find("tokens")) {
    if (auto error = parse_prompts(*tokens, context.vocabulary, asked)) {
      error->param = "tokens";
      return error;
    }
    parse_kv(f, context.kv_header, context.kv, asked.kv);
  } else if (const Json* text = f.find("prompt")) {
    asked.parse_special = context.parse_special;  // as a completion reads it
    if (auto error = parse_prompts(*text, context.vocabulary, asked)) return error;
    parse_kv(f, context.kv_header, context.kv, asked.kv);
  } else {
    return bad_value(
        "messages",
        "is required, or prompt, tokens, or request (the body of a chat or a completion)",
        "missing_required_parameter");
  }
  if (f.failed()) return f.error();
  std::vector<Prompt> prompts;
  asked.tokens_max = 0;
  if (auto error = make_prompts(asked, server.runtime(), prompts)) return error;
  if (prompts.size() != 1) return bad_value("prompt", "must be one prompt");
  prompt = std::move(prompts.front());
  return std::nullopt;
}

Json Server::statistics() const {
  const ServiceStats s = service_->snapshot();
  const CacheStats& c = s.cache;
  const Runtime& r = runtime();
  const Plan plan = make_plan(r.geometry(), {.context = r.context(), .concurrency = 1});
  std::uint64_t block_bytes = 0;
  for (const PlanGroup& g : plan.groups) block_bytes += g.block_bytes;
  const std::uint64_t used = c.referenced_bytes + c.cached_bytes + c.fenced_bytes;
  const std::uint64_t total = block_bytes ? c.budget_bytes / block_bytes : 0;
  const std::uint64_t taken = c.referenced_blocks + c.cached_blocks;
  Json evictions = Json::object();
  for (std::size_t i = 0; i < kReasonCount; ++i)
    if (c.evictions[i] > 0) {
      std::string_view cause = reason_name(static_cast<Reason>(i));
      if (cause.starts_with("evicted_")) cause.remove_prefix(8);
      evictions[std::string(cause)] = c.evictions[i];
    }
  Json tenants = Json::array();
  for (std::size_t i = 0; i < s.tenants->size(); ++i)
    tenants.push_back(
        {{"id", (*s.tenants)[i]},
         {"used_bytes", s.tenant_bytes[i]},
         {"quota_bytes", s.tenant_quotas[i] > 0 ? Json(s.tenant_quotas[i]) : Json()}});
  Json tiers = Json::array();
  tiers.push_back({{"name", "cpu"},
                   {"capacity_bytes", c.budget_bytes},
                   {"used_bytes", used},
                   {"blocks",
                    {{"total", total},
                     {"free", total > taken ? total - taken : 0},
                     {"active", c.referenced_blocks},
                     {"cached", c.cached_blocks},
                     {"pinned", block_bytes ? c.pinned_bytes / block_bytes : 0}}}});
  for (const TierLinkStats& t : s.tiers) tiers.push_back(tier_json(t));
  const auto rate = [](double hit, double asked) { return asked > 0 ? hit / asked : 0; };
  const HitHistory::Rates rates = hits_.rates(SteadyClock().now(), c.tokens_queried, c.tokens_hit);
  return {
      {"model", model()},
      {"block_size", r.geometry().tokens_per_block},
      {"bytes_per_token", {{r.kv_format(), plan.bytes_per_token}}},
      {"tiers", std::move(tiers)},
      {"resident",
       {{"tokens", s.cold_tokens},
        {"bytes_read", s.cold_bytes},
        {"bytes_read_per_token",
         rate(static_cast<double>(s.cold_bytes), static_cast<double>(s.cold_tokens))},
        {"hidden", hidden_share(s.cold_bytes, s.cold_hidden_bytes)},
        {"lost_blocks", s.lost_blocks}}},
      {"hit_rate",
       {{"1m", rates.minute},
        {"10m", rates.ten_minutes},
        {"total", rate(static_cast<double>(c.tokens_hit), static_cast<double>(c.tokens_queried))},
        {"token_weighted", true}}},
      {"tokens",
       {{"queried", c.tokens_queried},
        {"hit", c.tokens_hit},
        {"hit_by_tier",
         {{"cpu", c.tokens_hit},
          {"disk", s.prompt_tokens_loaded - s.prompt_tokens_remote},
          {"remote", s.prompt_tokens_remote}}},
        {"published", c.tokens_published}}},
      {"evictions", {{"total", c.evicted_blocks}, {"by_cause", evictions}}},
      {"sharing",
       {{"blocks_deduplicated", c.blocks_deduplicated},
        {"blocks_copied", c.blocks_copied},
        {"tokens_waited", s.prompt_tokens_waited},
        {"dedup_ratio", rate(static_cast<double>(s.prompt_tokens),
                             static_cast<double>(s.prompt_tokens - s.prompt_tokens_cached))}}},
      {"fragmentation",
       {{"waste_bytes", c.waste_bytes},
        {"slack_bytes", c.slack_bytes},
        {"ratio", rate(static_cast<double>(c.waste_bytes), static_cast<double>(c.slab_bytes))}}},
      {"sessions", service_->sessions().count()},
      {"pins", c.leases},
      {"pinned_bytes", c.pinned_bytes},
      {"pin_budget_bytes", c.pin_budget_bytes},
      {"nodes", c.nodes},
      {"ghost_hits", {{"x2", c.ghost_hits[0]}, {"x4", c.ghost_hits[1]}, {"x8", c.ghost_hits[2]}}},
      {"requests", {{"running", s.requests_running}, {"waiting", s.requests_waiting}}},
      {"tokens_generated", s.tokens_generated},
      {"prompt_tokens", s.prompt_tokens},
      {"prompt_tokens_cached", s.prompt_tokens_cached},
      {"preemptions", s.preemptions_recompute + s.preemptions_parked},
      {"saved_prefill_seconds", s.saved_prefill_seconds},
      {"tenants", std::move(tenants)}};
}

void get_kv_stats(Server& server, std::shared_ptr<Call> call) {
  call->respond(server.statistics());
}

void post_kv_lookup(Server& server, std::shared_ptr<Call> call) {
  server.with_json(call, [&server, call](const Json& body) {
    GenerationRequest asked;
    Prompt prompt;
    if (auto error = named_prompt(server, *call, body, asked, prompt))
      return post_refusal(call, std::move(*error));
    struct Found {
      Attached attached = {};
      double token_seconds = 0;
    };
    auto keys = server.service().block_keys(prompt.tokens, asked.kv.policy);
    auto shared = std::make_shared<Prompt>(std::move(prompt));
    server.with_engine(
        call,
        [shared, keys, policy = asked.kv.policy](EngineView& e) {
          Found found{.token_seconds = e.log.token_seconds};
          if (const auto root = e.runtime.find_root(policy.tenant, policy.storage.get()))
            found.attached = e.runtime.cache().lookup(*root, shared->tokens, keys);
          return found;
        },
        [&server, call, shared, keys](const Found& found) {
          const std::uint32_t p = server.runtime().geometry().tokens_per_block;
          const std::uint32_t all = static_cast<std::uint32_t>(shared->tokens.size());
          const std::uint32_t matched = found.attached.tokens;
          const std::size_t blocks = std::min<std::size_t>(matched / p, keys.size());
          Json miss = nullptr;
          if (matched + 1 < all)
            miss = {{"token", matched},
                    {"segment", segment_at(shared->segments, matched)},
                    {"reason", reason_name(found.attached.reason)}};
          call->respond({{"prompt_tokens", all},
                         {"matched_tokens", matched},
                         {"in_flight_tokens", found.attached.in_flight},
                         {"by_tier", {{"cpu", matched}}},
                         {"node", blocks == 0 ? Json() : Json(keys[blocks - 1].hex())},
                         {"est_ttft_ms",
                          {{"with_cache", (all - matched) * found.token_seconds * 1e3},
                           {"cold", all * found.token_seconds * 1e3}}},
                         {"first_miss", miss}});
        });
  });
}

void post_kv_prefill(Server& server, std::shared_ptr<Call> call) {
  server.with_json(call, [&server, call](const Json& body) {
    GenerationRequest asked;
    Prompt prompt;
    if (body.is_object() && body.value("async", Json(false)) == true)
      return post_refusal(call, not_implemented("async", "async"));
    if (auto error = named_prompt(server, *call, body, asked, prompt))
      return post_refusal(call, std::move(*error));
    Request request = make_request(asked, prompt, server.runtime(), call->id);
    if (auto error = claim_session(server, 1, asked, request))
      return post_refusal(call, std::move(*error));
    run_prompt(server, call, std::move(request), [call](const Done& d) {
      call->respond(
          {{"request_id", call->id},
           {"prompt_tokens", d.prompt_tokens},
           {"cached_tokens", d.cached_tokens},
           {"computed_tokens", d.computed_tokens},
           {"written_tokens", d.written_tokens},
           {"node", d.node == BlockKey{} ? Json() : Json(d.node.hex())},
           {"timing",
            {{"queue_ms", d.queue_seconds * 1e3}, {"prefill_ms", d.prefill_seconds * 1e3}}}});
    });
  });
}

void post_kv_evict(Server& server, std::shared_ptr<Call> call) {
  select_and_evict(server, std::move(call), false);
}

void post_kv_clear(Server& server, std::shared_ptr<Call> call) {
  select_and_evict(server, std::move(call), true);
}

void post_reset_prefix_cache(Server& server, std::shared_ptr<Call> call) {
  server.with_engine(
      call,
      [](EngineView& e) {
        e.drop_snapshots();
        return e.runtime.cache().clear();
      },
      [call](const Evicted& e) {
        call->respond({{"success", e.in_use == 0 && e.pinned == 0}});
      });
}

}  // namespace quire
