#include "cli/serve_several.h"

#include <fmt/core.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <thread>

#include "cli/serve_watch.h"
#include "server/model_house.h"

namespace quire::cli {
namespace {

namespace fs = std::filesystem;

// Their paths, in the order in which they were named; those of the folder by name.
Result<std::vector<std::string>> models_to_serve(const ServeOptions& o) {
  std::vector<std::string> paths;
  if (!o.model.path.empty() || !o.model.named.empty()) {
    TRY(std::string path, find_or_fetch_model(o.model));
    paths.push_back(std::move(path));
  }
  for (const std::string& name : o.more_models) {
    TRY(std::string path, find_or_fetch_model(name));
    paths.push_back(std::move(path));
  }
  if (o.models_dir.empty()) return paths;
  std::vector<std::string> found;
  std::error_code error;
  fs::directory_iterator at(o.models_dir, error);
  if (error)
    return Error{Code::not_found, o.models_dir + ": cannot be read: " + error.message() +
                                      "; --models-dir wants a folder of models"};
  for (const fs::directory_iterator end; !error && at != end; at.increment(error))
    if (at->path().extension() == ".gguf" || fs::exists(at->path() / "config.json", error))
      found.push_back(at->path().string());
  std::ranges::sort(found);
  if (found.empty() && paths.empty())
    return Error{Code::not_found,
                 o.models_dir + ": has no GGUF file and no folder with config.json"};
  paths.insert(paths.end(), found.begin(), found.end());
  return paths;
}

// What does not go with several models says so, instead of working for one of them.
Status check_options_of_several(const ServeOptions& o) {
  const std::pair<bool, const char*> refused[] = {
      {o.model.device != "cpu", "--device: several models are served on a CPU only"},
      {!o.model.random_weights.empty(), "--random-weights"},
      {!o.model.tier.dir.empty() && o.model.tier.dir != "auto", "--kv-dir"},
      {!o.model.tier.store.empty(), "--kv-store"},
      {!o.events.endpoint.empty() || !o.events_config.empty(), "--kv-events"},
      {!o.trace.empty(), "--trace"}};
  for (const auto& [is_given, name] : refused)
    if (is_given)
      return Error{
          Code::invalid,
          fmt::format("{}: not with several models yet; leave it out, or serve one model", name)};
  return {};
}

Result<std::vector<HousedModel>> look_at_models(const std::vector<std::string>& paths,
                                                const std::vector<std::string>& names,
                                                std::uint32_t context) {
  if (!names.empty() && names.size() != paths.size())
    return Error{Code::invalid,
                 fmt::format("-a was given {} times for {} models; name each of them "
                             "in order, or none",
                             names.size(), paths.size())};
  std::vector<HousedModel> models;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    TRY(ModelSource source, ModelSource::open(paths[i]));
    struct stat info {};
    ::stat(paths[i].c_str(), &info);
    HousedModel model{.name = names.empty() ? default_name(paths[i]) : names[i],
                      .path = paths[i],
                      .bytes = source.tensor_bytes(),
                      .context = context ? context : source.config().context,
                      .created = info.st_mtime};
    for (const HousedModel& other : models)
      if (other.name == model.name)
        return Error{Code::invalid, fmt::format("{} and {} have the same name, {}; name all models "
                                                "with -a",
                                                other.path, model.path, model.name)};
    models.push_back(std::move(model));
  }
  return models;
}

struct Memories {
  std::uint64_t weights = 0, cache = 0;
};

// What is not said is shared out of what is free: at most 60 % for weights, and of the rest 80 % for the
// cache.
Result<Memories> share_memory(const ServeOptions& o, const std::vector<HousedModel>& models) {
  const std::uint64_t free = available_memory();
  std::uint64_t all = 0, largest = 0;
  for (const HousedModel& m : models) {
    // Packed, a file may take a little more, in whole huge pages.
    const std::uint64_t bytes = m.bytes + m.bytes / 16 + (std::uint64_t{8} << 20);
    all += bytes;
    largest = std::max(largest, bytes);
  }
  Memories memories{.weights = std::min(all, std::max(largest, free / 10 * 6))};
  if (!o.weights_memory.empty()) {
    TRY(memories.weights, parse_size(o.weights_memory));
  }
  memories.cache = (free - std::min(free, std::min(memories.weights, all))) / 10 * 8;
  if (!o.model.kv_cache_memory.empty()) {
    TRY(memories.cache, parse_size(o.model.kv_cache_memory));
  }
  if (memories.cache < (std::uint64_t{64} << 20) && o.model.kv_cache_memory.empty())
    return Error{Code::exhausted, "no memory would be left for the cache; lower --weights-memory"};
  return memories;
}

}  // namespace

bool several_models(const ServeOptions& o) {
  return !o.more_models.empty() || !o.models_dir.empty();
}

int serve_several(const ServeOptions& o) {
  if (const Status s = check_options_of_several(o); !s.ok()) return fail(s.error());
  if (o.model.tier.dir == "auto")
    fmt::print(stderr, "with several models, blocks are not kept on disk for the next start yet\n");
  const auto paths = models_to_serve(o);
  if (!paths.ok()) return fail(paths.error());
  const auto models = look_at_models(paths.value(), o.names, o.model.context);
  if (!models.ok()) return fail(models.error());
  const auto memories = share_memory(o, models.value());
  if (!memories.ok()) return fail(memories.error());
  auto options = server_options(o, paths.value().front());
  if (!options.ok()) return fail(options.error());
  const auto scheduling = service_options(o);
  if (!scheduling.ok()) return fail(scheduling.error());
  if (o.dry_run) {
    for (const HousedModel& m : models.value())
      fmt::print(stderr, "would serve model={} weights={}\n", m.name,
                 human_bytes(static_cast<double>(m.bytes)));
    return kOk;
  }
  const sigset_t signals = block_signals();  // before any thread is there
  prepare_process(o.model.threads);
  auto keys = load_keys(options.value());
  if (!keys.ok()) return fail(keys.error());
  options.value().keys = std::move(keys.value());
  auto door = Door::open(options.value().http);
  if (!door.ok())
    return door.error().code == Code::unavailable ? fail(kCannotBind, door.error().message)
                                                  : fail(door.error());

  const auto began = std::chrono::steady_clock::now();
  ModelOptionsCli model = o.model;
  model.kv_cache_memory = std::to_string(memories.value().cache);
  model.tier = {};
  if (!o.api_key_file.empty()) model.tenant_pin_share = 0.5;
  auto wanted = runtime_options(model);
  if (!wanted.ok()) return fail(wanted.error());
  auto shared = SharedCache::make(wanted.value());
  if (!shared.ok()) return fail(shared.error());

  const auto open = [&](std::size_t index, std::shared_ptr<Door> at, const ServedModels& catalog,
                        const Server* first,
                        const HouseOptions::Progress& progress) -> Result<std::unique_ptr<Server>> {
    ModelOptionsCli one = model;
    one.path = models.value()[index].path;
    one.named.clear();
    TRY(std::unique_ptr<Runtime> runtime, open_runtime(one, shared.value(), progress));
    ServiceOptions service = scheduling.value();
    service.numbers_from = std::uint64_t{index} << 40;
    TRY(std::unique_ptr<Service> started, Service::start(std::move(runtime), std::move(service)));
    ServerOptions server = options.value();
    server.models = {models.value()[index].name};
    server.model_path = one.path;
    server.catalog = catalog;
    server.first = first;
    return Server::start(std::move(started), std::move(server), std::move(at));
  };
  const std::uint32_t cores = std::max(1u, std::thread::hardware_concurrency());
  auto house =
      ModelHouse::start({.models = models.value(),
                         .weights_bytes_max = memories.value().weights,
                         .stay_min = static_cast<Nanoseconds>(o.model_stay * 1e9),
                         .waiting_max = o.service.queue_max,
                         .threads = o.model.threads ? o.model.threads : cores,
                         .open = open,
                         .log = [](const std::string& line) { fmt::print(stderr, "{}\n", line); }},
                        std::move(door.value()));
  if (!house.ok()) return fail(house.error());
  const std::string url = url_of(o, house.value()->port());
  std::string names;
  for (const HousedModel& m : models.value()) names += (names.empty() ? "" : ",") + m.name;
  fmt::print(stderr, "listening on {} models={} weights={} kv={} in blocks of {} tokens\n", url,
             names, human_bytes(static_cast<double>(memories.value().weights)),
             human_bytes(static_cast<double>(memories.value().cache)), o.model.block_size);
  greet(url, began);
  return watch(*house.value(), nullptr, signals, o.drain);
}

}  // namespace quire::cli
