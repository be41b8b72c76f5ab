// server/routes.h - the handlers behind the table in server/routes.cc, by the file they are in. Those
// of a dialect are in its folder.
#pragma once

#include <memory>

#include "server/server.h"

namespace quire {

#define QUIRE_HANDLER(name) void name(Server& server, std::shared_ptr<Call> call)

// model_routes.cc
QUIRE_HANDLER(get_models);
QUIRE_HANDLER(get_model);

// adapter_routes.cc
QUIRE_HANDLER(post_load_adapter);
QUIRE_HANDLER(post_unload_adapter);
QUIRE_HANDLER(get_lora_adapters);
QUIRE_HANDLER(post_lora_adapters);

// text_routes.cc
QUIRE_HANDLER(post_tokenize);
QUIRE_HANDLER(post_detokenize);
QUIRE_HANDLER(post_apply_template);

// state_routes.cc
QUIRE_HANDLER(get_health);
QUIRE_HANDLER(get_ready);
QUIRE_HANDLER(get_version);
QUIRE_HANDLER(get_ping);
QUIRE_HANDLER(get_load);
QUIRE_HANDLER(get_props);
QUIRE_HANDLER(get_slots);
QUIRE_HANDLER(get_server_info);
QUIRE_HANDLER(not_yet);  // a route that is reserved

// peer_routes.cc
QUIRE_HANDLER(get_model_info);
QUIRE_HANDLER(get_health_generate);
QUIRE_HANDLER(flush_cache);
QUIRE_HANDLER(abort_request);

// page_routes.cc
QUIRE_HANDLER(get_page);
QUIRE_HANDLER(get_kv_page);
QUIRE_HANDLER(get_metrics);

// kv_routes.cc
QUIRE_HANDLER(get_kv_stats);
QUIRE_HANDLER(post_kv_lookup);
QUIRE_HANDLER(post_kv_plan);
QUIRE_HANDLER(post_kv_prefill);
QUIRE_HANDLER(post_kv_evict);
QUIRE_HANDLER(post_kv_clear);
QUIRE_HANDLER(post_reset_prefix_cache);

// kv_tree.cc
QUIRE_HANDLER(get_kv_tree);
QUIRE_HANDLER(get_kv_block);

// kv_pins.cc
QUIRE_HANDLER(post_pins);
QUIRE_HANDLER(get_pins);
QUIRE_HANDLER(get_pin);
QUIRE_HANDLER(patch_pin);
QUIRE_HANDLER(delete_pin);

// kv_sessions.cc
QUIRE_HANDLER(get_sessions);
QUIRE_HANDLER(post_sessions);
QUIRE_HANDLER(get_session);
QUIRE_HANDLER(delete_session);
QUIRE_HANDLER(post_session_fork);
QUIRE_HANDLER(post_session_truncate);

// kv_saves.cc
QUIRE_HANDLER(post_session_save);
QUIRE_HANDLER(post_session_load);
QUIRE_HANDLER(get_session_export);
QUIRE_HANDLER(post_session_import);
QUIRE_HANDLER(get_saves);
QUIRE_HANDLER(delete_save);

// kv_jobs.cc
QUIRE_HANDLER(post_kv_move);
QUIRE_HANDLER(post_kv_compress);
QUIRE_HANDLER(get_kv_jobs);
QUIRE_HANDLER(get_kv_job);
QUIRE_HANDLER(delete_kv_job);

// kv_tenants.cc
QUIRE_HANDLER(get_tenant);
QUIRE_HANDLER(put_tenant);
QUIRE_HANDLER(delete_tenant);

// kv_explain.cc
QUIRE_HANDLER(get_kv_requests);
QUIRE_HANDLER(get_kv_request);
QUIRE_HANDLER(post_kv_explain);

// kv_events.cc
QUIRE_HANDLER(get_kv_events);
QUIRE_HANDLER(get_kv_event_sources);

#undef QUIRE_HANDLER

// Cancels the caller's running requests of an id; an administrator's are everybody's. `then` runs on
// the connection's thread. Their clients get an error.
void cancel_by_id(Server& server, std::shared_ptr<Call> call, std::string id,
                  std::function<void(std::size_t cancelled)> then);

// What a body names, as a prompt: {"tokens"}, {"prompt"}, {"messages", ...} or {"request": {...}}, the
// last two in the caller's dialect or in {"dialect"}.
// Worker thread.
std::optional<ApiError> named_prompt(Server& server, Call& call, const Json& body,
                                     GenerationRequest& asked, Prompt& prompt);

}  // namespace quire
