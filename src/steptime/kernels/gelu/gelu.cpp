// gelu(x) = x Phi(x) and its derivative Phi(x) + x phi(x); Phi, phi: the standard normal distribution, density.
#include "../native/parallel.h"
#include "../native/simd.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using steptime::broadcast;
using steptime::IVec;
using steptime::kFloats;
using steptime::Vec;

struct Normal {
  Vec distribution, bell;  // Phi(x), exp(-x^2/2)
};

// Phi(-a) = exp(-a^2/2) t P(t) with t = 1 / (1 + 0.35 a): the form of Abramowitz & Stegun 7.1.26 with P of degree 8,
// fitted in float64 to erfcx(a / sqrt 2) / 2 over 0 <= a <= 13.4 to the least relative error, 3.2e-8. In floats
// Phi is within 4e-7 of itself, beside the rounding of a^2/2.
inline Normal normal(Vec x) {
  const Vec a = (Vec)((IVec)x & 0x7FFFFFFF);
  const Vec bell = steptime::exponential2(a * a * -0.72134752f);  // log2(e) / 2
  const Vec t = 1.0f / (a * 0.35f + 1.0f);
  const Vec s = t * t;  // two chains, of odd and even powers: one alone waits for each product
  Vec even = s * -0.0291206914f - 0.255450402f, odd = s * 0.143846568f + 0.158865975f;
  even = even * s - 0.0228924296f, odd = odd * s + 0.105413475f;
  even = even * s + 0.11985752f, odd = odd * s + 0.139858357f;
  const Vec tail = (bell * t) * (odd * t + (even * s + 0.139621613f));
  return {steptime::select(x < Vec{}, tail, 1.0f - tail), bell};
}

inline Vec value(Vec x) { return x * normal(x).distribution; }

inline Vec derivative(Vec x) {
  const Normal n = normal(x);
  return n.distribution + x * (n.bell * 0.3989422804f);  // 1 / sqrt(2 pi)
}

// f(i, count) for each vector of elements; the last may hold fewer.
template <class F>
void for_vectors(int64_t n, int threads, const F& f) {
  const int64_t vectors = (n + kFloats - 1) / kFloats;
  steptime::parallel_for(vectors, steptime::elementwise_threads(n, threads), [&](int64_t begin, int64_t end) {
    const int64_t full = end <= n / kFloats ? end : n / kFloats;
    for (int64_t i = begin; i < full; i++) f(i * kFloats, kFloats);
    if (full < end) f(full * kFloats, static_cast<int>(n - full * kFloats));
  });
}

inline Vec load(const float* at, int count) {
  if (count == kFloats) return steptime::load(at);
  Vec v = {};
  memcpy(&v, at, sizeof(float) * static_cast<size_t>(count));
  return v;
}
inline void store(float* at, Vec v, int count) {
  if (count == kFloats) {
    steptime::store(at, v);
  } else {
    memcpy(at, &v, sizeof(float) * static_cast<size_t>(count));
  }
}

}  // namespace

EXPORT void steptime_gelu(const float* x, float* y, int64_t n, int threads) {
  for_vectors(n, threads, [=](int64_t i, int count) { store(y + i, value(load(x + i, count)), count); });
}

EXPORT void steptime_gelu_backward(const float* grad, const float* x, float* out, int64_t n, int threads) {
  for_vectors(n, threads, [=](int64_t i, int count) {
    store(out + i, load(grad + i, count) * derivative(load(x + i, count)), count);
  });
}
