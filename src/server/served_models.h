// server/served_models.h - what /v1/models says of models that another server behind the same port has, or that
// are not loaded (server/model_house.h).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace quire {

enum class ModelState : std::uint8_t { unloaded, loading, loaded };

inline std::string_view state_name(ModelState state) {
  constexpr std::string_view kNames[] = {"unloaded", "loading", "loaded"};
  return kNames[static_cast<int>(state)];
}

struct ServedModel {
  std::string name;
  std::int64_t created = 0;  // seconds since 1970
  std::uint32_t context = 0;
  std::uint64_t bytes = 0;  // of weights
  ModelState state = ModelState::loaded;
  double progress = 0;  // of loading, 0 to 1
  std::string problem;  // why it could not be loaded; empty: it could, or nobody tried
};

using ServedModels = std::function<std::vector<ServedModel>()>;  // for all threads

}  // namespace quire
