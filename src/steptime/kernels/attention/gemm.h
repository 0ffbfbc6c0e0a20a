// Small dense products out of registers: C[m][n] (+)= sum_k A(m, k) B[k][n], for the 50 x 16 x 50 of one head.
#pragma once
#include "../native/simd.h"

namespace steptime {

constexpr int kRows = 6;  // 6 x 2 accumulators, 2 vectors of B and one broadcast fill AVX2's 16 registers

// A is read by element, at a + m * a_row + k * a_column, so its transpose costs nothing.
struct Product {
  const float* a;
  int64_t a_row, a_column;
  const float* b;
  int64_t b_row;
  float* c;
  int64_t c_row;
  int64_t depth;
  bool accumulate;
};

template <int R, int C>
inline void tile(const Product& p, int64_t m, int64_t n) {
  Vec sums[R][C];
  float* const c = p.c + m * p.c_row + n;
  for (int r = 0; r < R; r++) {
    for (int j = 0; j < C; j++) sums[r][j] = p.accumulate ? load(c + r * p.c_row + j * kFloats) : Vec{};
  }
  const float* a = p.a + m * p.a_row;
  const float* b = p.b + n;
  for (int64_t k = 0; k < p.depth; k++, a += p.a_column, b += p.b_row) {
    Vec row[C];
    for (int j = 0; j < C; j++) row[j] = load(b + j * kFloats);
    for (int r = 0; r < R; r++) {
      const Vec factor = broadcast(a[r * p.a_row]);
      for (int j = 0; j < C; j++) sums[r][j] += factor * row[j];
    }
  }
  for (int r = 0; r < R; r++) {
    for (int j = 0; j < C; j++) store(c + r * p.c_row + j * kFloats, sums[r][j]);
  }
}

template <int C>
void panel(const Product& p, int64_t rows, int64_t n) {
  int64_t m = 0;
  for (; m + kRows <= rows; m += kRows) tile<kRows, C>(p, m, n);
  switch (rows - m) {
    case 5: return tile<5, C>(p, m, n);
    case 4: return tile<4, C>(p, m, n);
    case 3: return tile<3, C>(p, m, n);
    case 2: return tile<2, C>(p, m, n);
    case 1: return tile<1, C>(p, m, n);
    default: return;
  }
}

// `columns` is a multiple of kFloats: B and C are padded to it.
inline void multiply(const Product& p, int64_t rows, int64_t columns) {
  int64_t n = 0;
  for (; n + 2 * kFloats <= columns; n += 2 * kFloats) panel<2>(p, rows, n);
  if (n < columns) panel<1>(p, rows, n);
}

}  // namespace steptime
