// The slots that NVIDIA's kvpress keeps of SmolLM2's keys and values, and ours.
// tests/reference/make_kvpress.py makes the data; QUIRE_KVPRESS names another set of it, as
// --out did.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

#include "base/file.h"
#include "base/json.h"
#include "kv/retain/observe.h"
#include "kv/retain/testing.h"

namespace quire {
namespace {

constexpr std::uint32_t kFuturePositions = 512, kSinks = 4;

struct Shape {
  std::uint32_t tokens, layers, query_heads, kv_heads, dim, window, lag;
  double theta;
};

// One layer's tensors, and every signal that the compared rows ask for.
struct Layer {
  std::vector<float> queries, keys, values;  // [head][token][dim]; queries before rotation
  std::vector<float> window_mass, last_mass, total_mass, mean, covariance;
  RetainInput in;

  Layer(const Shape& s, const std::int8_t*& at)
      : queries(read(at, s.query_heads * s.tokens, s.dim)),
        keys(read(at, s.kv_heads * s.tokens, s.dim)),
        values(read(at, s.kv_heads * s.tokens, s.dim)),
        mean(s.query_heads * s.dim),
        covariance(s.query_heads * s.dim * s.dim) {
    for (std::vector<float>* mass : {&window_mass, &last_mass, &total_mass})
      mass->resize(s.query_heads * s.tokens);
    std::vector<double> frequencies(s.dim / 2), cosines(s.dim / 2), sines(s.dim / 2);
    for (std::uint32_t i = 0; i < s.dim / 2; ++i)
      frequencies[i] = std::pow(s.theta, -2.0 * i / s.dim);
    mean_rotation(frequencies, s.tokens, kFuturePositions, cosines, sines);
    for (std::uint32_t head = 0; head < s.query_heads; ++head)
      observe(s, head, frequencies, cosines, sines);
    in = {.kv_heads = s.kv_heads,
          .group = s.query_heads / s.kv_heads,
          .key_dim = s.dim,
          .value_dim = s.dim,
          .slots = s.tokens,
          .keys = keys,
          .values = values,
          .window_mass = window_mass,
          .total_mass = total_mass,
          .query_mean = mean,
          .query_covariance = covariance};
  }
  Layer(const Layer&) = delete;

  static std::vector<float> read(const std::int8_t*& at, std::size_t rows, std::uint32_t dim) {
    std::vector<float> x;
    for (std::size_t r = 0; r < rows; ++r) {
      const int exponent = *at++;
      for (std::uint32_t c = 0; c < dim; ++c)
        x.push_back(std::ldexp(static_cast<float>(*at++), exponent));
    }
    return x;
  }

  void observe(const Shape& s, std::uint32_t head, std::span<const double> frequencies,
               std::span<const double> cosines, std::span<const double> sines) {
    const std::span<const float> own =
        std::span(queries).subspan(std::size_t{head} * s.tokens * s.dim, s.tokens * s.dim);
    QueryMoments moments(s.dim);
    std::vector<float> turned(own.begin(), own.end());
    for (std::uint32_t t = 0; t < s.tokens; ++t) {
      if (t >= kSinks) moments.add(own.subspan(t * s.dim, s.dim));
      for (std::uint32_t i = 0; i < s.dim / 2; ++i) {
        float &a = turned[t * s.dim + i], &b = turned[t * s.dim + s.dim / 2 + i];
        const auto c = static_cast<float>(std::cos(t * frequencies[i]));
        const auto n = static_cast<float>(std::sin(t * frequencies[i]));
        const float turned_a = a * c - b * n;
        b = b * c + a * n;
        a = turned_a;
      }
    }
    moments.turned(cosines, sines, std::span(mean).subspan(head * s.dim, s.dim),
                   std::span(covariance).subspan(std::size_t{head} * s.dim * s.dim, s.dim * s.dim));
    const std::uint32_t kv_head = head / (s.query_heads / s.kv_heads);
    const std::span<const float> head_keys =
        std::span(keys).subspan(std::size_t{kv_head} * s.tokens * s.dim, s.tokens * s.dim);
    const auto run = [&](std::uint32_t count) {
      return QueryRun{std::span(turned).subspan((s.tokens - count) * s.dim), count,
                      s.tokens - count, 1 / std::sqrt(static_cast<float>(s.dim))};
    };
    const auto row = [&](std::vector<float>& mass) {
      return std::span(mass).subspan(std::size_t{head} * s.tokens, s.tokens);
    };
    add_window_mass(run(s.window), head_keys, row(window_mass));
    add_window_mass(run(1), head_keys, row(last_mass));
    std::vector<float> lse(s.tokens);
    log_sum_exp(run(s.tokens), head_keys, lse);
    add_total_mass(run(s.tokens), lse, head_keys, row(total_mass));
  }
};

std::vector<std::uint32_t> slots_of(const std::string& hex) {
  std::vector<std::uint32_t> slots;
  for (std::uint32_t byte = 0; byte < hex.size() / 2; ++byte) {
    const int bits = std::stoi(hex.substr(2 * byte, 2), nullptr, 16);
    for (std::uint32_t bit = 0; bit < 8; ++bit)
      if (bits >> bit & 1) slots.push_back(8 * byte + bit);
  }
  return slots;
}

// LagKV's scores are ranks within runs, so every run has the same: where the budget does not divide
// evenly, kvpress leaves the choice to the order of equal scores.
bool comparable(const std::string& name, const Shape& s, std::uint32_t budget) {
  if (name != "lagkv") return true;
  const std::uint32_t runs = (s.tokens - kSinks) / s.lag - 1;  // the last has no successor
  const std::uint32_t always = s.tokens - runs * s.lag;
  return budget >= always && (budget - always) % runs == 0;
}

// Whether two sets differ only in slots of equal scores: another rule for ties is right, too.
bool tied(std::span<const float> scores, std::vector<std::uint32_t> a,
          std::vector<std::uint32_t> b) {
  const auto by_score = [&](std::uint32_t x, std::uint32_t y) { return scores[x] < scores[y]; };
  std::ranges::sort(a, by_score);
  std::ranges::sort(b, by_score);
  return std::ranges::equal(
      a, b, [&](std::uint32_t x, std::uint32_t y) { return scores[x] == scores[y]; });
}

TEST(Kvpress, KeepsTheSameSlots) {
  const char* other = std::getenv("QUIRE_KVPRESS");
  const std::string stem = other ? other : "tests/reference/kvpress";
  const Json data = parse_json(read_file(stem + ".json").value()).value();
  const std::string bytes = read_file(stem + ".bin").value();
  const Json& j = data["shape"];
  const Shape shape{j["tokens"], j["layers"], j["query_heads"], j["kv_heads"],
                    j["dim"],    j["window"], j["lag"],         j["rope_theta"]};
  const std::size_t rows =
      std::size_t{shape.layers} * shape.tokens * (shape.query_heads + 2 * shape.kv_heads);
  ASSERT_EQ(bytes.size(), rows * (1 + shape.dim));
  std::vector<std::int8_t> codes(bytes.size());
  std::memcpy(codes.data(), bytes.data(), bytes.size());
  const std::int8_t* at = codes.data();

  struct Lanes {
    int alike = 0, tied = 0, all = 0;
  };
  std::map<std::string, Lanes> agreed;
  for (std::uint32_t layer = 0; layer < shape.layers; ++layer) {
    Layer made(shape, at);
    for (const auto& [ratio, presses] : data["keep"].items())
      for (const auto& [name, lanes] : presses.items()) {
        RetainMethod m = method_named(name);
        RetainInput in = made.in;
        if (name == "snapkv" || name == "ada-snapkv") m.window = m.recent = shape.window;
        if (name == "lagkv") m.window = shape.lag;
        if (name == "tova") {
          m.recent = 1;  // kvpress protects the newest token
          in.window_mass = made.last_mass;
        }
        const std::uint32_t budget = budget_slots(shape.tokens, 1 - std::stod(ratio));
        if (!comparable(name, shape, budget)) continue;
        const KeepSets keep = keep_of(m, in, budget);
        Scored scored(shape.kv_heads);
        scored.add(m, in);
        for (std::uint32_t head = 0; head < shape.kv_heads; ++head) {
          const auto ours = kept(keep, head);
          const auto theirs = slots_of(lanes[layer * shape.kv_heads + head]);
          const auto of_head =
              std::span(scored.scores).subspan(std::size_t{head} * shape.tokens, shape.tokens);
          Lanes& count = agreed[name];
          count.alike += ours == theirs;
          count.tied += ours != theirs && tied(of_head, ours, theirs);
          ++count.all;
        }
      }
  }
  ASSERT_GE(agreed.size(), 9u);
  for (const auto& [name, lanes] : agreed) {
    std::printf("%-12s %d of %d lanes alike, %d tied\n", name.c_str(), lanes.alike, lanes.all,
                lanes.tied);
    EXPECT_GE(lanes.alike + lanes.tied, 0.99 * lanes.all) << name;
    EXPECT_GE(lanes.alike, 0.98 * lanes.all) << name;
  }
}

}  // namespace
}  // namespace quire
