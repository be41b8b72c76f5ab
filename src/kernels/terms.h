// kernels/terms.h - the constants of exp and tanh, shared by the scalar reference and every vector
// version.
//
// exp(x) = 2^n * e^r with n = round(x / ln 2), r = x - n * ln 2 in two fused steps, and
//   e^r = 1 + r + r^2 * (kExp2 + r * (kExp3 + ...)), Horner by fma; minimax on |r| <= ln(2)/2,
//   3.1e-9 relative.
// Below kExpMin the result is 0 (so no subnormals), above kExpMax infinity.
// The coarse exp, for weights of encoded values, has t = x * log2 e, n = round(t) and
//   2^(t - n) = 1 + f * (kCoarse1 + f * (kCoarse2 + f * kCoarse3)), 1.1e-4 relative.
// tanh(x) for |x| < kTanhSmall is x + x^3 * (kTanh3 + x^2 * (kTanh5 + ...)), 4.4e-9 relative;
// beyond, (1 - e) / (1 + e) with e = exp(-2|x|) and the sign of x. Coefficients were fitted by
// iterated least squares (Lawson).
#pragma once

namespace quire {

inline constexpr float kExpMin = -87.3f, kExpMax = 88.37f;
// The narrow arithmetic of kernels/attend.h. Weights below 2^-64 are 0, so that no sum is
// subnormal. A key's largest element lies in [kKeyUnits, 2 kKeyUnits) and a query's is kQueryUnits,
// so that sums of kScoreRun products fit into 32 bits.
inline constexpr float kNarrowExpMin = -44.3614f;
inline constexpr float kKeyUnits = 4096, kKeyPowerMin = 0x1p-100f;
inline constexpr float kQueryUnits = 4095, kQueryMin = 0x1p-100f;
inline constexpr unsigned kScoreRun = 64;
inline constexpr float kLog2E = 0x1.715476p+0f;
inline constexpr float kLn2High = 0x1.62e430p-1f, kLn2Low = -0x1.05c610p-29f;
// 1.5 * 2^23 + 127: adding it rounds to an integer and leaves n + 127 in the low bits, ready to be
// an exponent.
inline constexpr float kRoundBias = 12582912.0f + 127.0f;
inline constexpr float kExp2 = 0x1.fffffcp-2f, kExp3 = 0x1.555492p-3f, kExp4 = 0x1.5558f2p-5f,
                       kExp5 = 0x1.123a20p-7f, kExp6 = 0x1.6a23d0p-10f;

inline constexpr float kCoarse1 = 0x1.62f5fap-1f, kCoarse2 = 0x1.f00c52p-3f,
                       kCoarse3 = 0x1.c2a220p-5f;

inline constexpr float kTanhSmall = 0.625f;
inline constexpr float kTanh3 = -0x1.555532p-2f, kTanh5 = 0x1.110726p-3f, kTanh7 = -0x1.b83c5ap-5f,
                       kTanh9 = 0x1.52269ap-6f, kTanh11 = -0x1.75e1c4p-8f;

// gelu_tanh(x) = x / (1 + exp(-2u)), u = sqrt(2/pi) * (x + 0.044715 x^3) = x * (kGelu1 + kGelu3 *
// x^2).
inline constexpr float kGelu1 = 0.7978845608028654f, kGelu3 = 0.7978845608028654f * 0.044715f;

}  // namespace quire
