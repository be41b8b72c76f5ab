#include "kv/retain/score.h"

#include <algorithm>

#include "kernels/ref/math.h"

namespace quire::retain {

void softmax(std::span<float> x) {
  if (x.empty()) return;
  const float most = *std::max_element(x.begin(), x.end());
  double sum = 0;
  for (float& v : x) sum += v = ref::exp(v - most);
  for (float& v : x) v = static_cast<float>(v / sum);
}

}  // namespace quire::retain
