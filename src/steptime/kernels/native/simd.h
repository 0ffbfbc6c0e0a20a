// Float vectors of the machine's width through the compilers' vector extension, exp2 and masks on them.
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
#if defined(__clang__)  // has no shuffle whose pattern is a vector
constexpr bool kSquares = false;
inline Vec shuffle(Vec a, Vec, IVec) { return a; }
#else
constexpr bool kSquares = true;
inline Vec shuffle(Vec a, Vec b, IVec pattern) { return __builtin_shuffle(a, b, pattern); }
#endif
inline Vec select(IVec mask, Vec a, Vec b) { return (Vec)(((IVec)a & mask) | ((IVec)b & ~mask)); }
inline Vec larger(Vec a, Vec b) { return select(a > b, a, b); }

// Halves are added (compared) until one element is left: three dependent steps for eight elements, not seven.
template <class F>
inline float fold(Vec v, const F& f) {
  float x[kFloats];
  store(x, v);
#pragma GCC unroll 4
  for (int width = kFloats / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; i++) x[i] = f(x[i], x[i + width]);
  }
  return x[0];
}
inline float sum(Vec v) {
  return fold(v, [](float a, float b) { return a + b; });
}
inline float maximum(Vec v) {
  return fold(v, [](float a, float b) { return a > b ? a : b; });
}

// 2^x for x <= 127, within 3 ulp (a polynomial of degree 5 on [-1/2, 1/2], off by 1e-7 with its rounding: fitted to the
// least relative error); below -126 exactly 0, so no denormals; NaN stays NaN.
inline Vec exponential2(Vec x) {
  const Vec magic = broadcast(12582912.0f + 127.0f);  // 1.5 * 2^23: adding it rounds to an integer, in the low bits
  const Vec shifted = x + magic;
  const Vec r = x - (shifted - magic);
  Vec y = r * 0.0013264725f + 0.009671513f;
  y = y * r + 0.055507336f;
  y = y * r + 0.24022242f;
  y = y * r + 0.693147f;
  y = y * r + 1.0f;
  const Vec power = (Vec)((IVec)shifted << 23);
  return select(x < broadcast(-126.0f), Vec{}, y * power);
}

// All ones in lane j where bit i + j of `bits` is set, for i a multiple of kFloats.
inline IVec set_bits(const uint8_t* bits, int64_t i) {
  IVec lane;
  for (int j = 0; j < kFloats; j++) lane[j] = 1 << j;
#if defined(__AVX512F__)
  uint16_t few;
  memcpy(&few, bits + i / 8, 2);
  const IVec here = IVec{} + few;
#elif defined(__AVX__)
  typedef uint8_t Bytes __attribute__((vector_size(kVectorBytes)));
  const IVec here = (IVec)(Bytes{} + bits[i / 8]);  // one load that broadcasts; the lanes' bits are in the lowest byte
#else
  const IVec here = IVec{} + (bits[i / 8] >> (i & 4));
#endif
  return (here & lane) == lane;
}

}  // namespace steptime
