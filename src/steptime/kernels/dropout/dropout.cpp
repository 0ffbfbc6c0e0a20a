// Dropout with a counter-based mask: generation and multiplication in one pass over memory, on all threads.
#include <string.h>

#include "../native/parallel.h"
#include "../native/philox.h"
#include "../native/simd.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using steptime::kChunk;
using steptime::kFloats;
using steptime::Philox;

constexpr int kTile = 4 * kChunk;  // elements between two looks at the mask: their factors stay in the L1 cache

struct BFloat16 {
  uint16_t bits;
};

// A value as it is computed with.
inline float load(float x) { return x; }
inline double load(double x) { return x; }
inline float load(BFloat16 x) {
  const uint32_t bits = uint32_t{x.bits} << 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}
inline void store(float* at, float x) { *at = x; }
inline void store(double* at, double x) { *at = x; }
inline void store(BFloat16* at, float x) {  // round to nearest even; a NaN stays one
  uint32_t bits;
  memcpy(&bits, &x, 4);
  const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  at->bits = static_cast<uint16_t>(x != x ? 0x7FC0u : rounded);
}

// The factors 1 and 0 of a tile's elements, from their bits.
inline void unpack(const uint8_t* bits, float* factors) {
  typedef steptime::Vec Vec;
  const Vec one = steptime::broadcast(1.0f);
  for (int i = 0; i < kTile; i += kFloats) {
    steptime::store(factors + i, (Vec)((steptime::IVec)one & steptime::set_bits(bits, i)));
  }
}

// The factor is multiplied, not selected: inf and NaN in a dropped place give NaN, as torch's dropout does.
// `to` may be `from`: each element is read before it is written.
template <class T, class Real>
inline void scale_tile(const T* from, T* to, const float* factors, int count, Real scale) {
#pragma GCC ivdep
  for (int i = 0; i < count; i++) store(to + i, load(from[i]) * (static_cast<Real>(factors[i]) * scale));
}

// One pass: the mask, a bit an element, is read from `saved` where given, else drawn, and kept in `keep` where given.
template <class T, class Real>
void drop(const T* x, T* y, const uint8_t* saved, uint8_t* keep, int64_t n, uint64_t seed, uint32_t threshold,
          Real scale, int threads) {
  const int64_t tiles = (n + kTile - 1) / kTile;
  steptime::parallel_for(tiles, steptime::elementwise_threads(n, threads), [=](int64_t begin, int64_t end) {
    const Philox generator(seed, 0);
    alignas(64) float factors[kTile];
    uint8_t bits[kTile / 8] = {};
    for (int64_t tile = begin; tile < end; tile++) {
      const int64_t start = tile * kTile;
      const int count = static_cast<int>(n - start < kTile ? n - start : kTile);
      const size_t bytes = static_cast<size_t>(count + 7) / 8;
      if (saved) {
        memcpy(bits, saved + start / 8, bytes);
      } else {
        for (int at = 0; at < count; at += kChunk) {
          steptime::keep_chunk(generator, static_cast<uint64_t>((start + at) / kChunk), threshold, bits + at / 8);
        }
        if (keep) memcpy(keep + start / 8, bits, bytes);
      }
      unpack(bits, factors);
      if (count == kTile) {  // a constant trip count, for the vectoriser
        scale_tile(x + start, y + start, factors, kTile, scale);
      } else {
        scale_tile(x + start, y + start, factors, count, scale);
      }
    }
  });
}

}  // namespace

#define STEPTIME_DROPOUT(NAME, T, REAL)                                                                           \
  EXPORT void steptime_drop_##NAME(const T* x, T* y, uint8_t* keep, int64_t n, uint64_t seed, uint32_t threshold, \
                                   double scale, int threads) {                                                   \
    drop<T, REAL>(x, y, nullptr, keep, n, seed, threshold, static_cast<REAL>(scale), threads);                     \
  }                                                                                                               \
  EXPORT void steptime_apply_##NAME(const T* x, const uint8_t* keep, T* y, int64_t n, double scale, int threads) { \
    drop<T, REAL>(x, y, keep, nullptr, n, 0, 0, static_cast<REAL>(scale), threads);                               \
  }

STEPTIME_DROPOUT(float32, float, float)
STEPTIME_DROPOUT(float64, double, double)
STEPTIME_DROPOUT(bfloat16, BFloat16, float)

// The generator's words by themselves, for the known-answer tests.
EXPORT void steptime_philox_block(uint64_t seed, uint64_t stream, uint64_t block, uint32_t* out) {
  uint32_t words[steptime::kWords];
  steptime::philox_chunk(Philox(seed, stream), block / steptime::kBlocks, words);
  const int at = 2 * static_cast<int>(block % steptime::kBlocks);
  for (int j = 0; j < 4; j++) out[j] = words[(j / 2) * steptime::kWords / 2 + at + j % 2];
}
