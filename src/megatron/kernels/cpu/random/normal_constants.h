#pragma once

// Coefficients of the polynomials of normal_run: minimax fits over the reduced ranges of the Cephes library (Moshier).
namespace megatron::kernels::cpu {

inline constexpr float kTwoToMinus31 = 4.656612873077392578125e-10f;
inline constexpr float kQuarterTurn = 1.46291807926715968e-9f;  // pi/2 / 2^30

// ln(1 + f) = f - f^2/2 + f^3 P(f), sqrt(1/2) - 1 <= f < sqrt(2) - 1; ln 2 in two parts.
inline constexpr float kLog[9] = {7.0376836292e-2f,  -1.1514610310e-1f, 1.1676998740e-1f,
                                  -1.2420140846e-1f, 1.4249322787e-1f,  -1.6668057665e-1f,
                                  2.0000714765e-1f,  -2.4999993993e-1f, 3.3333331174e-1f};
inline constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
inline constexpr int kSqrtHalfBits = 0x3F3504F3;

// sin x = x + x^3 S(x^2), cos x = 1 - x^2/2 + x^4 C(x^2), |x| <= pi/4.
inline constexpr float kSin[3] = {-1.9515295891e-4f, 8.3321608736e-3f, -1.6666654611e-1f};
inline constexpr float kCos[3] = {2.443315711809948e-5f, -1.388731625493765e-3f, 4.166664568298827e-2f};

}  // namespace megatron::kernels::cpu
