// sim/asks.h - requests of one simulated world, drawn from everything that is legal.
//
// An ask is a number: the same number is the same request, so that it can be made again for an engine
// of its own. Worlds have few texts and few policies, so requests overlap and are often equal in part.
//
//   Asks asks(seed, runtime);
//   Request r = asks.make(17);
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "engine/request.h"
#include "engine/runtime.h"
#include "sim/features.h"

namespace quire {

class Asks {
 public:
  static constexpr std::string_view kTenants[] = {"", "red"};
  struct Policy {  // of a request's KV cache
    std::shared_ptr<const StoragePolicy> storage;
    std::shared_ptr<const RetainPolicy> retain;
    std::shared_ptr<const SelectPolicy> select;
    std::optional<double> blend;
    bool convert = false;
  };

  Asks(std::uint64_t seed, const Runtime& runtime);

  Request make(std::uint64_t ask) const;
  // What it is made of, counted.
  static void count(const Request& r, Features& features);

  const std::vector<std::vector<TokenId>>& texts() const { return texts_; }
  const std::vector<Policy>& policies() const { return policies_; }
  bool are_greedy() const { return theme_ == Theme::greedy; }

 private:
  // Most worlds mix everything. Some have more of what happens rarely in a mix.
  enum class Theme : std::uint8_t {
    mixed,
    greedy,   // most likely tokens in two formats: steps are submitted ahead
    reading,  // methods that read the prompt again, with several answers
    cuts,     // texts that end before and behind the cuts of their budgets
  };
  Policy draw_policy(const Runtime& runtime);
  std::shared_ptr<const StoragePolicy> draw_storage();
  std::string draw_retain();
  std::vector<TokenId> draw_prompt(Random& random) const;
  static void draw_sampling(Random& random, Request& r);
  void draw_answers(Random& random, Request& r) const;
  void draw_pooling(Random& random, Request& r) const;
  void draw_resident(Random& random, Request& r) const;

  std::uint64_t seed_;
  Random random_;  // of what the world has
  Theme theme_;
  std::vector<std::vector<TokenId>> texts_;
  std::vector<Policy> policies_;
  std::vector<std::string> tenants_, salts_;
  bool pins_, tiers_;
  std::uint64_t block_bytes_;
};

}  // namespace quire
