// tensor/code_levels.h - what the sixteen codes of some weight types stand for (constants of the
// formats). Data alone: files for one instruction set include it.
#pragma once

#include <cstdint>

namespace quire {

inline constexpr std::int8_t kLevelsIq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                               1,    13,   25,  38,  53,  69,  89,  113};
inline constexpr std::int8_t kLevelsMxfp4[16] = {0, 1,  2,  3,  4,  6,  8,  12,  // twice E2M1
                                                 0, -1, -2, -3, -4, -6, -8, -12};
// As bitsandbytes has them (functional.py, create_normal_map): quantiles of a normal distribution.
inline constexpr float kLevelsNf4[16] = {-1.0f,
                                         -0.6961928009986877f,
                                         -0.5250730514526367f,
                                         -0.39491748809814453f,
                                         -0.28444138169288635f,
                                         -0.18477343022823334f,
                                         -0.09105003625154495f,
                                         0.0f,
                                         0.07958029955625534f,
                                         0.16093020141124725f,
                                         0.24611230194568634f,
                                         0.33791524171829224f,
                                         0.44070982933044434f,
                                         0.5626170039176941f,
                                         0.7229568362236023f,
                                         1.0f};

}  // namespace quire
