// kernels/draw.h - the device's part of sampling: what it is asked for each row of logits, and what
// it answers.
//
// engine/sampler.h defines which token is drawn. A device changes logits (bias, penalties, bans),
// finds the best token and the sum behind its log-probability, draws from the whole distribution,
// or finds the candidates (the likely part) among which the Sampler then chooses. From the same
// logits, device and Sampler give the same token and log-probability, bit for bit.
// engine/engine_draw.cc fills the requests, kernels/cuda/draw.cu answers them, and draw_scalar
// defines the answers.
#pragma once

#include <cstdint>
#include <span>

#include "base/token.h"

namespace quire {

enum class DrawMode : std::uint32_t {
  logits,  // nothing: the whole row of logits is wanted
  best,    // the most likely
  whole,   // drawn from all of them
  above,   // the values of at least `floor`; where top_p < 1, those that hold its mass
  top,     // the `top_k` best, and perhaps some more
};

struct DrawChange {
  TokenId token;
  float by;
};

struct alignas(16) DrawRow {
  DrawMode mode = DrawMode::logits;
  float inverse = 1;  // of the temperature
  float floor = 0, top_p = 1;
  std::uint32_t top_k = 0;
  float repetition = 1;
  // In DrawChanges: logits that get a bias, that are penalized (repetition, then less `by`), and that
  // are banned. Of each kind a token comes at most once.
  std::uint32_t first_change = 0, biased = 0, penalized = 0, banned = 0;
  std::uint32_t list = 0;     // where the likely part goes; each row its own
  std::uint32_t logprob = 1;  // whether max and sum are wanted
  double unit = 0;            // the draw, in [0, 1)
};

// The largest likely part; if there are more candidates, the row of logits is copied instead.
inline constexpr std::uint32_t kDrawListMax = 4096;

// One likely part, in the order of tokens.
struct DrawList {
  TokenId tokens[kDrawListMax];
  float values[kDrawListMax];  // less the largest, over temperature
  float logits[kDrawListMax];  // as the model gave them
};

struct Drawn {
  DrawMode mode = DrawMode::logits;
  TokenId token = kNoToken;  // best, whole
  float logit = 0;           // its own, as the model gave it
  float max = 0, sum = 0;    // of the model's logits: sum of exp(x - max)
  float total = 0;           // of all values' exp
  std::uint32_t count = 0;   // of the likely part
  std::uint32_t finite = 0;  // whether the model's output is
  const DrawList* list = nullptr;
};

struct Draws {
  std::span<const DrawRow> rows;  // one for each row of logits
  std::span<const DrawChange> changes;
  std::uint32_t lists = 0;
};

// What a device does with one row. `list` receives the likely part. A device may find a larger
// likely part than this function; both hold every token that the Sampler may choose.
Drawn draw_scalar(std::span<const float> logits, const DrawRow& row,
                  std::span<const DrawChange> changes, DrawList& list);

}  // namespace quire
