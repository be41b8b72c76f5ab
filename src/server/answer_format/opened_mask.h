// server/answer_format/opened_mask.h - a mask that begins later than the answer: the model may reason first,
// and control tokens that no grammar can write come before the grammar's text.
//
//   r.mask = open_mask({.think = t.find("<think>"), .answer = t.find("</think>")}, std::move(grammar));
#pragma once

#include <memory>
#include <vector>

#include "engine/request.h"

namespace quire {

struct MaskOpening {
  TokenId think = kNoToken, answer = kNoToken;  // marks around reasoning; kNoToken: there is none
  bool inside = false;                          // the prompt ends with `think`
  std::vector<TokenId> tokens = {};             // that must come before what the mask allows
  std::vector<TokenId> ends = {};               // that end an answer, so not within reasoning
};

std::unique_ptr<TokenMask> open_mask(MaskOpening opening, std::unique_ptr<TokenMask> mask);

}  // namespace quire
