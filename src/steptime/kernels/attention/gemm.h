// Small dense products out of registers: C[m][n] (+)= sum_k A(m, k) B[k][n], for the 50 x 16 x 50 of one head.
#pragma once
#include "../native/simd.h"

namespace steptime {

constexpr int kRows = 6;  // 6 x 2 accumulators, 2 vectors of B and one broadcast fill AVX2's 16 registers
constexpr int kPanel = 2 * kFloats;

inline int64_t padded(int64_t n) { return (n + kFloats - 1) / kFloats * kFloats; }

// B, cut into panels of kPanel columns, each contiguous: a strided panel whose stride is a power of two would fall on
// few sets of the cache. Columns are padded with zeros to whole vectors; the last panel may be one vector wide.
struct Panels {
  float* data;
  int64_t rows, columns;

  int64_t width(int64_t n) const { return n + kPanel <= columns ? kPanel : kFloats; }
  float* at(int64_t row, int64_t n) const { return data + n * rows + row * width(n); }  // n a multiple of kPanel
};

inline int64_t panel_floats(int64_t rows, int64_t columns) { return rows * padded(columns); }

// B[row][column] = from[row * stride + column].
inline Panels pack(const float* from, int64_t stride, int64_t rows, int64_t columns, float* room) {
  const Panels to{room, rows, padded(columns)};
  for (int64_t n = 0; n < to.columns; n += kPanel) {
    const int64_t width = to.width(n), present = columns - n < width ? columns - n : width;
    float* out = to.at(0, n);
    for (int64_t row = 0; row < rows; row++, out += width) {
      const float* in = from + row * stride + n;
      if (present == width) {
        for (int64_t i = 0; i < width; i += kFloats) store(out + i, load(in + i));
      } else {
        for (int64_t i = 0; i < present; i++) out[i] = in[i];
        for (int64_t i = present; i < width; i++) out[i] = 0;
      }
    }
  }
  return to;
}

// B[row][column] = from[column * stride + row] * factor.
inline Panels pack_transposed(const float* from, int64_t stride, int64_t rows, int64_t columns, float factor,
                              float* room) {
  const Panels to{room, rows, padded(columns)};
  for (int64_t n = 0; n < to.columns; n += kPanel) {
    const int64_t width = to.width(n), present = columns - n < width ? columns - n : width;
    float* const out = to.at(0, n);
    const float* const in = from + n * stride;
    for (int64_t row = 0; row < rows; row++) {
      for (int64_t i = 0; i < present; i++) out[row * width + i] = in[i * stride + row] * factor;
      for (int64_t i = present; i < width; i++) out[row * width + i] = 0;
    }
  }
  return to;
}

// A is read by element, at a + m * a_row + k * a_column, so its transpose costs nothing. Row k of the product's B is
// row b_first + k of the panels.
struct Product {
  const float* a;
  int64_t a_row, a_column;
  Panels b;
  int64_t b_first;
  float* c;
  int64_t c_row;
  int64_t depth;
  bool accumulate;
};

template <int R, int C>
inline void tile(const Product& p, int64_t m, const float* b, int64_t b_row, float* c) {
  Vec sums[R][C];
  c += m * p.c_row;
  for (int r = 0; r < R; r++) {
    for (int j = 0; j < C; j++) sums[r][j] = p.accumulate ? load(c + r * p.c_row + j * kFloats) : Vec{};
  }
  const float* a = p.a + m * p.a_row;
  for (int64_t k = 0; k < p.depth; k++, a += p.a_column, b += b_row) {
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
  const float* const b = p.b.at(p.b_first, n);
  const int64_t b_row = p.b.width(n);
  float* const c = p.c + n;
  int64_t m = 0;
  for (; m + kRows <= rows; m += kRows) tile<kRows, C>(p, m, b, b_row, c);
  switch (rows - m) {
    case 5: return tile<5, C>(p, m, b, b_row, c);
    case 4: return tile<4, C>(p, m, b, b_row, c);
    case 3: return tile<3, C>(p, m, b, b_row, c);
    case 2: return tile<2, C>(p, m, b, b_row, c);
    case 1: return tile<1, C>(p, m, b, b_row, c);
    default: return;
  }
}

// The first `columns` columns, a multiple of kFloats; C is padded to it.
inline void multiply(const Product& p, int64_t rows, int64_t columns) {
  int64_t n = 0;
  for (; n + kPanel <= columns; n += kPanel) panel<2>(p, rows, n);
  if (n < columns) panel<1>(p, rows, n);
}

}  // namespace steptime
