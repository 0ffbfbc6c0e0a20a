// Float vectors of the machine's width through the compilers' vector extension, and exp on them.
#pragma once
#include <stdint.h>
#include <string.h>

namespace steptime {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif
constexpr int kFloats = kVectorBytes / 4;

typedef float Vec __attribute__((vector_size(kVectorBytes)));
typedef int32_t IVec __attribute__((vector_size(kVectorBytes)));

inline Vec load(const float* at) {
  Vec v;
  memcpy(&v, at, sizeof v);
  return v;
}
inline void store(float* at, Vec v) { memcpy(at, &v, sizeof v); }
inline Vec broadcast(float x) { return x - Vec{}; }  // not Vec{} + x: that would turn -0 into 0
inline Vec select(IVec mask, Vec a, Vec b) { return (Vec)(((IVec)a & mask) | ((IVec)b & ~mask)); }
inline Vec larger(Vec a, Vec b) { return select(a > b, a, b); }

inline float sum(Vec v) {
  float total = 0;
  for (int i = 0; i < kFloats; i++) total += v[i];
  return total;
}
inline float maximum(Vec v) {
  float most = v[0];
  for (int i = 1; i < kFloats; i++) most = v[i] > most ? v[i] : most;
  return most;
}

// exp(x) for x <= 88, within 2 ulp (Cephes' expf polynomial); below -87.3 exactly 0, so no denormals; NaN stays NaN.
inline Vec exponential(Vec x) {
  const Vec magic = broadcast(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer held in the low bits
  const Vec shifted = x * 1.44269504088896341f + magic;
  const Vec n = shifted - magic;
  const Vec r = x - n * 0.693359375f - n * -2.12194440e-4f;
  Vec y = r * 1.9875691500e-4f + 1.3981999507e-3f;
  y = y * r + 8.3334519073e-3f;
  y = y * r + 4.1665795894e-2f;
  y = y * r + 1.6666665459e-1f;
  y = y * r + 5.0000001201e-1f;
  y = y * r * r + r + 1.0f;
  const Vec power = (Vec)(((IVec)shifted - (IVec)magic + 127) << 23);
  return select(x < broadcast(-87.3f), Vec{}, y * power);
}

}  // namespace steptime
