// gelu(x) = x Phi(x) and its derivative Phi(x) + x phi(x), on vectors; Phi, phi: the standard normal distribution, density.
#pragma once
#include "simd.h"

namespace steptime {

// x Phi(x), with Phi(-a) = 1/2 (1 + a P(a))^-16: the form of Abramowitz & Stegun 7.1.28 with P of degree 8, fitted in
// float64 over 0 <= a <= 5.8 to the least error of a Phi(-a), 6e-8; with the rounding of floats 4e-7. Beyond, the power
// grows until its inverse is 0. No exponential: the multiplications are what bounds the speed.
inline Vec gelu(Vec x) {
  const Vec a = (Vec)((IVec)x & 0x7FFFFFFF);
  Vec y = a * 1.4979654e-08f - 1.40904473e-07f;
  y = y * a + 1.28378543e-06f;
  y = y * a - 2.72648501e-06f;
  y = y * a + 7.52785793e-05f;
  y = y * a - 5.95137839e-06f;
  y = y * a + 0.00331464033f;
  y = y * a + 0.0211266282f;
  y = y * a + 0.0498692768f;
  y = y * a + 1.0f;
  y = y * y, y = y * y, y = y * y, y = y * y;
  const Vec tail = 0.5f / y;
  return x * select(x < Vec{}, tail, 1.0f - tail);
}

// Phi(x) + x phi(x) = 1/2 + x P(x^2) / Q(x^2), both of degree 5: fitted in float64 over |x| <= 5.6 to the least error,
// 1.1e-7; with the rounding of floats 4e-7. Beyond, where the derivative is 1 or 0 to 4e-7, x is cut off.
inline Vec gelu_derivative(Vec x) {
  const Vec most = broadcast(5.6f);
  const Vec z = select(x > most, most, select(x < -most, -most, x));  // NaN stays NaN
  const Vec u = z * z;
  Vec p = u * 1.9216852e-07f + 3.58993781e-05f, q = u * 8.92821118e-06f + 0.000192051577f;
  p = p * u + 1.97498498e-05f, q = q * u + 0.0035226367f;
  p = p * u + 0.014226077f, q = q * u + 0.0409837227f;
  p = p * u - 0.0309754265f, q = q * u + 0.294519494f;
  p = p * u + 0.797885345f, q = q * u + 1.0f;
  return z * p / q + 0.5f;
}

}  // namespace steptime
