#include "server/answer_format/opened_mask.h"

#include <algorithm>

namespace quire {
namespace {

void set_bit(std::span<std::uint32_t> bits, TokenId token, bool value) {
  if (token / 32 >= bits.size()) return;
  const std::uint32_t bit = std::uint32_t{1} << token % 32;
  bits[token / 32] = value ? bits[token / 32] | bit : bits[token / 32] & ~bit;
}

class OpenedMask final : public TokenMask {
 public:
  OpenedMask(std::shared_ptr<const MaskOpening> opening, std::unique_ptr<TokenMask> mask)
      : opening_(std::move(opening)), mask_(std::move(mask)) {
    may_think_ = opening_->think != kNoToken && opening_->answer != kNoToken;
    thinks_ = may_think_ && opening_->inside;
  }

  bool fill(std::span<std::uint32_t> bits) override {
    if (thinks_) {
      std::ranges::fill(bits, ~std::uint32_t{0});
      for (const TokenId end : opening_->ends) set_bit(bits, end, false);
      return true;
    }
    if (next_ < opening_->tokens.size()) {
      std::ranges::fill(bits, 0u);
      set_bit(bits, opening_->tokens[next_], true);
    } else if (!mask_->fill(bits)) {
      return false;
    }
    if (may_think_) set_bit(bits, opening_->think, true);
    return true;
  }

  bool accept(TokenId token) override {
    if (thinks_) {
      if (token == opening_->answer) thinks_ = may_think_ = false;
      return true;
    }
    if (may_think_ && token == opening_->think) return thinks_ = true;
    may_think_ = false;
    if (next_ == opening_->tokens.size()) return mask_->accept(token);
    return token == opening_->tokens[next_++];
  }

  std::unique_ptr<TokenMask> fork() const override {
    auto copy = std::make_unique<OpenedMask>(opening_, mask_->fork());
    copy->next_ = next_;
    copy->may_think_ = may_think_;
    copy->thinks_ = thinks_;
    return copy;
  }

 private:
  std::shared_ptr<const MaskOpening> opening_;
  std::unique_ptr<TokenMask> mask_;
  std::size_t next_ = 0;  // of the opening's tokens
  bool may_think_ = false, thinks_ = false;
};

}  // namespace

std::unique_ptr<TokenMask> open_mask(MaskOpening opening, std::unique_ptr<TokenMask> mask) {
  if (opening.tokens.empty() && opening.think == kNoToken) return mask;
  return std::make_unique<OpenedMask>(std::make_shared<const MaskOpening>(std::move(opening)),
                                      std::move(mask));
}

}  // namespace quire
