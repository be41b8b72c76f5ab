// format/levels.h - what a code of turbo and nvfp4 stands for, as small integers around 128 and 12,
// and constants of scales. Plain: read by the codecs and by kernels of every instruction set.
#pragma once

#include <cstdint>

namespace quire {

// Lloyd-Max for unit variance: 3 bits +-{0.2451, 0.7560, 1.3439, 2.1519}, 4 bits +-{0.1284, 0.3880,
// 0.6568, 0.9423, 1.2562, 1.6180, 2.0690, 2.7326}.
inline constexpr float kTurboUnit3 = 2.1519f / 127, kTurboUnit4 = 2.7326f / 127;
inline constexpr std::uint8_t kTurboLevels3[16] = {1, 49, 83, 114, 142, 173, 207, 255};
inline constexpr std::uint8_t kTurboLevels4[16] = {1,   32,  53,  70,  84,  97,  110, 122,
                                                   134, 146, 159, 172, 186, 203, 224, 255};
// fp8: the least scale of a row.
inline constexpr float kFp8LeastScale = 0x1p-24f;
// Four even levels for Gaussian numbers of unit variance are best 1 / 1.0043 apart.
inline constexpr float kGaussianStep = 1.0043f;
// e2m1, twice: +-{0, 1, 2, 3, 4, 6, 8, 12}.
inline constexpr std::uint8_t kNvfp4Levels[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                                  12, 11, 10, 9,  8,  6,  4,  0};

}  // namespace quire
