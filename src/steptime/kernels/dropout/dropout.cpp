// Dropout with a counter-based mask: generation and multiplication in one pass over memory, on all threads.
#include <string.h>

#include "../native/parallel.h"
#include "../native/philox.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using steptime::Key;
using steptime::kChunk;

// Below so many elements a second thread costs more to wake than it saves.
constexpr int64_t kParallelElements = 16384;

int threads_for(int64_t n, int threads) { return n < kParallelElements ? 1 : threads; }

struct BFloat16 {
  uint16_t bits;
};

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

// The factor is multiplied, not selected: inf and NaN in a dropped place give NaN, as torch's dropout does.
// `to` may be `from`: each element is read before it is written.
template <class T, class Real>
inline void drop_chunk(const T* from, T* to, const uint32_t* words, int count, uint32_t threshold, Real scale) {
#pragma GCC ivdep
  for (int i = 0; i < count; i++) store(to + i, load(from[i]) * (words[i] >= threshold ? scale : Real(0)));
}

template <class T, class Real>
void drop(const T* x, T* y, uint8_t* keep, int64_t n, Key key, uint32_t threshold, Real scale, int threads) {
  const int64_t chunks = (n + kChunk - 1) / kChunk;
  steptime::parallel_for(chunks, threads_for(n, threads), [=](int64_t begin, int64_t end) {
    alignas(64) uint32_t words[kChunk];
    for (int64_t chunk = begin; chunk < end; chunk++) {
      steptime::philox_chunk(key, static_cast<uint64_t>(chunk), words);
      const int64_t start = chunk * kChunk;
      const int count = static_cast<int>(n - start < kChunk ? n - start : kChunk);
      if (count == kChunk) {  // a constant trip count, for the vectoriser
        drop_chunk(x + start, y + start, words, kChunk, threshold, scale);
      } else {
        drop_chunk(x + start, y + start, words, count, threshold, scale);
      }
      if (keep) {
        uint8_t kept[kChunk];
        for (int i = 0; i < kChunk; i++) kept[i] = words[i] >= threshold;
        memcpy(keep + start, kept, static_cast<size_t>(count));
      }
    }
  });
}

template <class T, class Real>
void apply(const T* x, const uint8_t* keep, T* y, int64_t n, Real scale, int threads) {
  steptime::parallel_for(n, threads_for(n, threads), [=](int64_t begin, int64_t end) {
#pragma GCC ivdep
    for (int64_t i = begin; i < end; i++) store(y + i, load(x[i]) * (Real(keep[i]) * scale));
  });
}

}  // namespace

#define STEPTIME_DROPOUT(NAME, T, REAL)                                                                           \
  EXPORT void steptime_drop_##NAME(const T* x, T* y, uint8_t* keep, int64_t n, uint64_t seed, uint32_t threshold, \
                                   double scale, int threads) {                                                   \
    drop<T, REAL>(x, y, keep, n, Key{seed, 0}, threshold, static_cast<REAL>(scale), threads);                     \
  }                                                                                                               \
  EXPORT void steptime_apply_##NAME(const T* x, const uint8_t* keep, T* y, int64_t n, double scale, int threads) { \
    apply<T, REAL>(x, keep, y, n, static_cast<REAL>(scale), threads);                                             \
  }

STEPTIME_DROPOUT(float32, float, float)
STEPTIME_DROPOUT(float64, double, double)
STEPTIME_DROPOUT(bfloat16, BFloat16, float)

// The generator's words by themselves, for the known-answer tests: words[j] of block `block`.
EXPORT void steptime_philox_block(uint64_t seed, uint64_t stream, uint64_t block, uint32_t* out) {
  alignas(64) uint32_t words[kChunk];
  steptime::philox_chunk(Key{seed, stream}, block / steptime::kBlocks, words);
  const int at = 2 * static_cast<int>(block % steptime::kBlocks);
  for (int j = 0; j < 4; j++) out[j] = words[(j / 2) * kChunk / 2 + at + j % 2];
}
