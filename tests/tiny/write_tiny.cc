// write_tiny FOLDER: writes the models of model/tiny_cases.h, for make_logits.py, and the adapters of
// model/tiny_adapter.h as FOLDER/adapters/NAME, for make_adapters.py and tests of the server.
#include <cstdio>

#include "model/tiny_adapter.h"
#include "model/tiny_cases.h"
#include "model/weights_source.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: write_tiny FOLDER\n");
    return 2;
  }
  std::vector<quire::TinyCase> cases = quire::tiny_cases();
  // These two for tests of the server: numbers that are not finite, and layers that take their time.
  cases.push_back({"broken", {.tied_head = false, .broken = true}});
  cases.push_back({"wide",
                   {.type = quire::DType::f16,
                    .layers = 4,
                    .hidden = 512,
                    .feed_forward = 512,
                    .query_heads = 8,
                    .kv_heads = 4,
                    .head_dim = 64,
                    .context = 8192}});
  for (const quire::TinyCase& c : cases) {
    const auto written =
        quire::write_tiny_gguf(std::string(argv[1]) + "/" + c.name + ".gguf", c.options);
    if (!written.ok()) {
      std::fprintf(stderr, "error: %s\n", written.error().message.c_str());
      return 1;
    }
  }
  for (const quire::TinyAdapterCase& c : quire::tiny_adapter_cases()) {
    const std::string folder = argv[1];
    const auto model = quire::ModelSource::open(folder + "/" + c.model + ".gguf");
    const auto written = model.ok() ? quire::write_tiny_adapter(folder + "/adapters/" + c.name,
                                                                c.options, model.value().config())
                                    : quire::Status(model.error());
    if (!written.ok()) {
      std::fprintf(stderr, "error: %s\n", written.error().message.c_str());
      return 1;
    }
  }
  return 0;
}
