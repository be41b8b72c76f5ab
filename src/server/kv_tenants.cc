// Tenants: what each has in the cache, and what an administrator allows it.
#include "server/routes.h"

namespace quire {
namespace {

// Where the cache lies.
const char* place(const Server& server) {
  return server.runtime().executor().traits().device == DeviceKind::cpu ? "cpu" : "gpu";
}

Json tenant_json(const Server& server, const std::string& id, const TenantInfo& t) {
  const auto limit = [](std::uint64_t most) { return most == 0 ? Json() : Json(most); };
  return {{"id", id},
          {"quota_bytes", {{place(server), limit(t.limits.bytes)}}},
          {"pin_bytes", limit(t.limits.pin_bytes)},
          {"leases", limit(t.limits.leases)},
          {"share_bytes", t.share_bytes},
          {"used",
           {{"bytes", t.bytes},
            {"pin_bytes", t.pinned_bytes},
            {"leases", t.leases},
            {"roots", t.roots}}}};
}

void show_tenant(Server& server, const std::shared_ptr<Call>& call,
                 std::optional<TenantLimits> limits) {
  const std::string& id = call->arguments.front();
  server.with_engine(
      call,
      [id, limits](EngineView& e) -> Result<TenantInfo> {
        KvCache& cache = e.runtime.cache();
        if (limits) TRY_STATUS(cache.set_limits(id, *limits));
        return cache.tenant(id);
      },
      [&server, call, id](const Result<TenantInfo>& t) {
        if (!t.ok()) return call->refuse(from_error(t.error()));
        call->respond(tenant_json(server, id, t.value()));
      });
}

}  // namespace

// A tenant may see its own.
void get_tenant(Server& server, std::shared_ptr<Call> call) {
  if (!call->caller.admin && call->caller.tenant != call->arguments.front())
    return call->refuse(forbidden("another tenant's quota needs an admin key"));
  show_tenant(server, call, std::nullopt);
}

void put_tenant(Server& server, std::shared_ptr<Call> call) {
  server.with_json(call, [&server, call](const Json& body) {
    constexpr std::int64_t kMost = std::int64_t{1} << 60;
    Fields f(body);
    TenantLimits limits;
    if (auto quota = f.object("quota_bytes")) {
      const std::string here = place(server), other = here == "cpu" ? "gpu" : "cpu";
      limits.bytes = static_cast<std::uint64_t>(quota->integer(here, 1, kMost).value_or(0));
      if (quota->find(other))
        quota->refuse(bad_value("quota_bytes." + other,
                                "this server's cache lies elsewhere: set quota_bytes." + here));
      quota->refuse_unknown();
    }
    limits.pin_bytes = static_cast<std::uint64_t>(f.integer("pin_bytes", 1, kMost).value_or(0));
    limits.leases = static_cast<std::uint32_t>(f.integer("leases", 1, 65536).value_or(0));
    for (const char* later : {"defaults", "isolation"})
      if (f.find(later)) f.refuse(not_implemented(later, later));
    f.refuse_unknown();
    if (f.failed()) return post_refusal(call, f.error());
    show_tenant(server, call, limits);
  });
}

void delete_tenant(Server& server, std::shared_ptr<Call> call) {
  show_tenant(server, call, TenantLimits{});
}

}  // namespace quire
