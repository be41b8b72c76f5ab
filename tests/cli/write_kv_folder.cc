// Writes made-up records into a cache folder, so that `quire kv` has something to look at.
//
//   write_kv_folder FOLDER RECORDS [SECONDS to hold the folder]
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "kv/tier/disk_store.h"
#include "kv/tier/disk_testing.h"

int main(int argc, char** argv) {
  using namespace quire;
  if (argc < 3) return 2;
  const auto files = system_files();
  const long records = std::atol(argv[2]);
  const DiskStoreOptions usual;  // a few records are spread over several volumes
  const auto store = DiskStore::open(
      *files, {.folder = {.path = argv[1]},
               .volume_bytes = records > 1000 ? usual.volume_bytes : std::uint64_t{1} << 20});
  if (!store.ok()) {
    std::fprintf(stderr, "%s\n", store.error().message.c_str());
    return 1;
  }
  for (long n = 0; n < records; ++n) {
    const TestBlock block(static_cast<std::uint64_t>(n),
                          {.tokens = 32, .segments = 4, .segment_bytes = 5000});
    const RecordWrite write = write_of(block);
    TierOutcome outcome{};
    store.value()->write({&write, 1}, {&outcome, 1});
    if (outcome != TierOutcome::ok && outcome != TierOutcome::already) return 1;
  }
  if (!store.value()->save(true).ok()) return 1;
  if (argc > 3) {
    std::puts("holding");
    std::fflush(stdout);
    std::this_thread::sleep_for(std::chrono::seconds(std::atol(argv[3])));
  }
}
