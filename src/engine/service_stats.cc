#include "engine/service_stats.h"

namespace quire {
namespace {

constexpr double kFirstToken[] = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,
                                  .75,  1,    2.5, 5,   7.5, 10,  20,  40, 80,  160};
constexpr double kInterToken[] = {.001, .0025, .005, .01, .025, .05, .075, .1, .15,
                                  .2,   .3,    .4,   .5,  .75,  1,   2.5,  5};
constexpr double kRequestBuckets[] = {.01, .05, .1, .3, .5, .8, 1,  1.5, 2,   2.5, 5,
                                      10,  15,  20, 30, 40, 50, 60, 120, 240, 480, 960};
constexpr double kTokens[] = {1,   2,    5,    10,   20,    50,    100,   200,
                              500, 1000, 2000, 5000, 10000, 20000, 50000, 100000};
constexpr double kChoices[] = {1, 2, 5, 10, 20};
constexpr double kLookup[] = {1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4,
                              5e-4, 1e-3, 2e-3, 5e-3, .01,  .02,  .05,  .1};
constexpr double kRows[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192};

}  // namespace

ServiceStats::ServiceStats()
    : first_token_seconds(kFirstToken),
      inter_token_seconds(kInterToken),
      token_seconds(kInterToken),
      request_seconds(kRequestBuckets),
      queue_seconds(kRequestBuckets),
      prefill_seconds(kRequestBuckets),
      decode_seconds(kRequestBuckets),
      inference_seconds(kRequestBuckets),
      request_prompt_tokens(kTokens),
      request_generated_tokens(kTokens),
      request_computed_tokens(kTokens),
      request_choices(kChoices),
      request_tokens_max(kTokens),
      rows_per_step(kRows),
      lookup_seconds(kLookup),
      tenants(std::make_shared<const std::vector<std::string>>()) {}

}  // namespace quire
