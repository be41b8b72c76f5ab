#include "server/routes.h"

namespace quire {
namespace {

constexpr Route kRoutes[] = {
    {"GET", "/v1/models", Access::user, get_models},
    {"GET", "/v1/models/{id*}", Access::user, get_model},
    {"POST", "/v1/load_lora_adapter", Access::admin, post_load_adapter},
    {"POST", "/v1/unload_lora_adapter", Access::admin, post_unload_adapter},
    {"GET", "/lora-adapters", Access::user, get_lora_adapters},
    {"POST", "/lora-adapters", Access::admin, post_lora_adapters},

    {"POST", "/tokenize", Access::user, post_tokenize},
    {"POST", "/detokenize", Access::user, post_detokenize},
    {"POST", "/apply-template", Access::user, post_apply_template},

    {"GET", "/", Access::open, get_page},
    {"GET", "/kv", Access::open, get_kv_page},
    {"GET", "/metrics", Access::open, get_metrics},

    {"GET", "/health", Access::open, get_health},
    {"GET", "/ready", Access::open, get_ready},
    {"GET", "/version", Access::open, get_version},
    {"GET", "/ping", Access::open, get_ping},
    {"GET", "/load", Access::user, get_load},
    {"GET", "/props", Access::user, get_props},
    {"GET", "/slots", Access::admin, get_slots},
    {"GET", "/server_info", Access::admin, get_server_info},
    {"GET", "/get_server_info", Access::admin, get_server_info},
    {"GET", "/get_model_info", Access::user, get_model_info},
    {"GET", "/model_info", Access::user, get_model_info},
    {"GET", "/health_generate", Access::user, get_health_generate},
    {"GET", "/flush_cache", Access::admin, flush_cache},
    {"POST", "/flush_cache", Access::admin, flush_cache},
    {"POST", "/abort_request", Access::user, abort_request},

    {"GET", "/v1/kv/stats", Access::admin, get_kv_stats},
    {"GET", "/v1/kv/tree", Access::user, get_kv_tree},
    {"GET", "/v1/kv/blocks/{id}", Access::user, get_kv_block},
    {"POST", "/v1/kv/pins", Access::user, post_pins},
    {"GET", "/v1/kv/pins", Access::user, get_pins},
    {"GET", "/v1/kv/pins/{id}", Access::user, get_pin},
    {"PATCH", "/v1/kv/pins/{id}", Access::user, patch_pin},
    {"DELETE", "/v1/kv/pins/{id}", Access::user, delete_pin},
    {"GET", "/v1/kv/leases", Access::user, get_pins},
    {"GET", "/v1/kv/sessions", Access::user, get_sessions},
    {"POST", "/v1/kv/sessions", Access::user, post_sessions},
    {"POST", "/v1/kv/sessions/load", Access::user, post_session_load},
    {"POST", "/v1/kv/sessions/import", Access::user, post_session_import},
    {"GET", "/v1/kv/sessions/{id}", Access::user, get_session},
    {"DELETE", "/v1/kv/sessions/{id}", Access::user, delete_session},
    {"POST", "/v1/kv/sessions/{id}/fork", Access::user, post_session_fork},
    {"POST", "/v1/kv/sessions/{id}/truncate", Access::user, post_session_truncate},
    {"POST", "/v1/kv/sessions/{id}/save", Access::user, post_session_save},
    {"GET", "/v1/kv/sessions/{id}/export", Access::user, get_session_export},
    {"GET", "/v1/kv/saves", Access::user, get_saves},
    {"DELETE", "/v1/kv/saves/{name}", Access::user, delete_save},
    {"GET", "/v1/kv/tenants/{id}", Access::user, get_tenant},
    {"PUT", "/v1/kv/tenants/{id}", Access::admin, put_tenant},
    {"DELETE", "/v1/kv/tenants/{id}", Access::admin, delete_tenant},
    {"GET", "/v1/kv/requests", Access::user, get_kv_requests},
    {"GET", "/v1/kv/requests/{id}", Access::user, get_kv_request},
    {"POST", "/v1/kv/explain", Access::user, post_kv_explain},
    {"GET", "/v1/kv/events", Access::admin, get_kv_events},
    {"GET", "/kv_event_sources", Access::admin, get_kv_event_sources},
    {"POST", "/v1/kv/lookup", Access::user, post_kv_lookup},
    {"POST", "/v1/kv/plan", Access::user, post_kv_plan},
    {"POST", "/v1/kv/prefill", Access::user, post_kv_prefill},
    {"POST", "/v1/kv/evict", Access::admin, post_kv_evict},
    {"POST", "/v1/kv/clear", Access::admin, post_kv_clear},
    {"POST", "/v1/kv/move", Access::admin, post_kv_move},
    {"POST", "/v1/kv/compress", Access::admin, post_kv_compress},
    {"GET", "/v1/kv/jobs", Access::admin, get_kv_jobs},
    {"GET", "/v1/kv/jobs/{id}", Access::admin, get_kv_job},
    {"DELETE", "/v1/kv/jobs/{id}", Access::admin, delete_kv_job},
    {"POST", "/reset_prefix_cache", Access::admin, post_reset_prefix_cache},

    // Reserved: routes that clients of other servers use and that this server does not have.
    {"POST", "/slots/{id}", Access::admin, not_yet},
    {"POST", "/completion", Access::user, not_yet},
    {"POST", "/open_session", Access::user, not_yet},
    {"POST", "/close_session", Access::user, not_yet},
    {"GET", "/hicache/storage-backend", Access::admin, not_yet},
    {"PUT", "/hicache/storage-backend", Access::admin, not_yet},
    {"DELETE", "/hicache/storage-backend", Access::admin, not_yet},
    {"POST", "/hicache/storage-backend/clear", Access::admin, not_yet},
    {"GET", "/v1/kv/config", Access::admin, not_yet},
};

}  // namespace

std::span<const Route> all_routes() {
  static const std::vector<Route> all = [] {
    std::vector<Route> routes;
    for (const Dialect* dialect : dialects())
      for (Route r : dialect->routes) {
        r.dialect = dialect;
        routes.push_back(r);
      }
    routes.insert(routes.end(), std::begin(kRoutes), std::end(kRoutes));
    return routes;
  }();
  return all;
}

}  // namespace quire
