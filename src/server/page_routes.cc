// What people and their dashboards look at: the page at `/` and the metrics.
#include "engine/plan.h"
#include "server/metrics.h"
#include "server/page.h"
#include "server/routes.h"

namespace quire {

void get_page(Server&, std::shared_ptr<Call> call) {
  call->exchange->respond({.headers = {{"Content-Type", "text/html; charset=utf-8"},
                                       {"Content-Security-Policy", std::string(kPagePolicy)},
                                       {"Referrer-Policy", "no-referrer"},
                                       {"Cache-Control", "no-cache"}},
                           .body = std::string(page_html())});
}

void get_kv_page(Server&, std::shared_ptr<Call> call) {
  call->exchange->respond({.status = 302, .headers = {{"Location", "/"}}});
}

void get_metrics(Server& server, std::shared_ptr<Call> call) {
  const ServerOptions& options = server.options();
  if (!options.metrics) return call->refuse(not_found("metrics are off (--no-metrics)"));
  const bool guarded = options.metrics_auth || !is_loopback(options.http.host);
  if (guarded && !call->caller.admin)
    return call->refuse(forbidden("metrics need an admin key here"));
  const Runtime& runtime = server.runtime();
  const Plan plan = make_plan(runtime.geometry(), {.context = runtime.context(), .concurrency = 1});
  std::uint64_t block_bytes = 0;
  for (const PlanGroup& g : plan.groups) block_bytes += g.block_bytes;
  const MetricsIdentity identity{.model_name = server.model(),
                                 .version = options.version,
                                 .kv_format = runtime.kv_format(),
                                 .block_size = runtime.geometry().tokens_per_block,
                                 .block_bytes = std::max<std::uint64_t>(block_bytes, 1)};
  const MetricsFormat format = metrics_format(call->request().header("accept"));
  call->exchange->respond(
      {.headers = {{"Content-Type", std::string(metrics_content_type(format))}},
       .body = render_metrics(identity, server.service().snapshot(), server.counts(), format)});
}

}  // namespace quire
