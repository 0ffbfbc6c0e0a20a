// Splits a range over threads: through torch's own OpenMP pool where the library could join it, else std::thread.
#pragma once
#include <stdint.h>
#ifdef _OPENMP
#include <omp.h>
#else
#include <thread>
#endif

namespace steptime {

// Below so many elements a second thread costs more to wake than it saves.
constexpr int64_t kParallelElements = 16384;

inline int elementwise_threads(int64_t n, int threads) { return n < kParallelElements ? 1 : threads; }

// f(begin, end) over [0, n). One thread means no parallel region at all, so a forked worker never meets the pool.
template <class F>
void parallel_for(int64_t n, int threads, const F& f) {
  if (threads > n) threads = static_cast<int>(n);
  if (threads <= 1) {
    f(int64_t{0}, n);
    return;
  }
#ifdef _OPENMP
#pragma omp parallel num_threads(threads)
  {
    const int64_t t = omp_get_thread_num(), count = omp_get_num_threads();
    f(n * t / count, n * (t + 1) / count);
  }
#else
  auto* pool = new std::thread[threads - 1];
  for (int t = 1; t < threads; t++) {
    pool[t - 1] = std::thread([&f, n, t, threads] { f(n * t / threads, n * (t + 1) / threads); });
  }
  f(int64_t{0}, n / threads);
  for (int t = 1; t < threads; t++) pool[t - 1].join();
  delete[] pool;
#endif
}

}  // namespace steptime
