#include "hub/pull_model.h"

#include "hub/choose_files.h"

namespace quire {

Result<PulledModel> pull_model(const HubName& name, const PullOptions& options) {
  TRY(HubClient hub, HubClient::open(options.access, options.log));
  TRY(HubListing listing, hub.list(name));
  std::vector<std::string> paths;
  for (const HubFile& file : listing.files) paths.push_back(file.path);
  TRY(const ChosenFiles chosen, choose_files(paths, name.file, name.full()));
  PulledModel pulled;
  pulled.commit = listing.commit;
  pulled.others = chosen.others;
  for (const std::size_t i : chosen.files) {
    TRY_STATUS(hub.complete(name, listing.commit, listing.files[i]));
    pulled.bytes += listing.files[i].size;
    pulled.files.push_back(paths[i]);
  }
  FetchOptions fetch{
      .access = options.access, .connections = options.connections, .log = options.log};
  std::uint64_t before = 0;
  if (options.progress)
    fetch.progress = [&](std::uint64_t done) { options.progress(before + done, pulled.bytes); };
  for (const std::size_t i : chosen.files) {
    const HubFile& file = listing.files[i];
    TRY_STATUS(
        fetch_file(name, listing.commit, file, options.cache.blob(name, file.digest), fetch));
    before += file.size;
  }
  // Links come last: what is half there is not taken for a model.
  for (const std::size_t i : chosen.files)
    TRY_STATUS(options.cache.link(name, listing.commit, paths[i], listing.files[i].digest));
  TRY_STATUS(options.cache.set_revision(name, listing.commit));
  const std::string snapshot = options.cache.repo_folder(name) + "/snapshots/" + listing.commit;
  pulled.path = chosen.main.empty() ? snapshot : snapshot + "/" + chosen.main;
  return pulled;
}

}  // namespace quire
