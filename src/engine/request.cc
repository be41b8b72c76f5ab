#include "engine/request.h"

namespace quire {

std::string_view failure_name(FailureKind kind) {
  constexpr std::string_view names[] = {"none",
                                        "invalid_value",
                                        "context_length_exceeded",
                                        "kv_capacity_exceeded",
                                        "queue_full",
                                        "draining",
                                        "kv_capacity",
                                        "deadline_exceeded",
                                        "numeric_error",
                                        "client_closed_request",
                                        "device_lost",
                                        "kv_quota_exceeded",
                                        "model_file_changed",
                                        "tier_unavailable"};
  return names[static_cast<std::size_t>(kind)];
}

std::string_view finish_name(Finish finish) {
  constexpr std::string_view names[] = {"length", "stop", "stop", "stop", "cancelled"};
  return names[static_cast<std::size_t>(finish)];
}

std::optional<Pooling> find_pooling(std::string_view name) {
  if (name == "last") return Pooling::last;
  if (name == "mean") return Pooling::mean;
  if (name == "cls") return Pooling::cls;
  return std::nullopt;
}

}  // namespace quire
