// GELU and its gradient in one pass over memory each, on all threads.
#include "../native/gelu.h"
#include "../native/parallel.h"
#include "../native/simd.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using steptime::kFloats;
using steptime::Vec;

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
  for_vectors(n, threads, [=](int64_t i, int count) { store(y + i, steptime::gelu(load(x + i, count)), count); });
}

EXPORT void steptime_gelu_backward(const float* grad, const float* x, float* out, int64_t n, int threads) {
  for_vectors(n, threads, [=](int64_t i, int count) {
    store(out + i, load(grad + i, count) * steptime::gelu_derivative(load(x + i, count)), count);
  });
}
