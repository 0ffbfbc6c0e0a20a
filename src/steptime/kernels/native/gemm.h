// Small dense products out of registers: C[m][n] (+)= sum_k A(m, k) B[k][n], for the 50 x 16 x 50 of one head.
#pragma once
#include "simd.h"

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

// B[row][column] = from[row * stride + column] * factor.
inline Panels pack(const float* from, int64_t stride, int64_t rows, int64_t columns, float factor, float* room) {
  const Panels to{room, rows, padded(columns)};
  for (int64_t n = 0; n < to.columns; n += kPanel) {
    const int64_t width = to.width(n), present = columns - n < width ? columns - n : width;
    float* out = to.at(0, n);
    for (int64_t row = 0; row < rows; row++, out += width) {
      const float* in = from + row * stride + n;
      if (present == width) {
        for (int64_t i = 0; i < width; i += kFloats) store(out + i, load(in + i) * factor);
      } else {
        for (int64_t i = 0; i < present; i++) out[i] = in[i] * factor;
        for (int64_t i = present; i < width; i++) out[i] = 0;
      }
    }
  }
  return to;
}

// A square of kFloats x kFloats, transposed in registers: log2(kFloats) rounds of interleaving rows.
inline void transpose(const float* from, int64_t stride, float factor, float* to, int64_t to_stride) {
  Vec rows[kFloats];
  for (int i = 0; i < kFloats; i++) rows[i] = load(from + i * stride) * factor;
  IVec low, high;
  for (int i = 0; i < kFloats; i++) {
    low[i] = i / 2 + i % 2 * kFloats;
    high[i] = low[i] + kFloats / 2;
  }
#pragma GCC unroll 4
  for (int round = 1; round < kFloats; round *= 2) {
    Vec next[kFloats];
    for (int i = 0; i < kFloats / 2; i++) {
      next[2 * i] = shuffle(rows[i], rows[i + kFloats / 2], low);
      next[2 * i + 1] = shuffle(rows[i], rows[i + kFloats / 2], high);
    }
    for (int i = 0; i < kFloats; i++) rows[i] = next[i];
  }
  for (int i = 0; i < kFloats; i++) store(to + i * to_stride, rows[i]);
}

// B[row][column] = from[column * stride + row] * factor.
inline Panels pack_transposed(const float* from, int64_t stride, int64_t rows, int64_t columns, float factor,
                              float* room) {
  const Panels to{room, rows, padded(columns)};
  for (int64_t n = 0; n < to.columns; n += kPanel) {
    const int64_t width = to.width(n), present = columns - n < width ? columns - n : width;
    float* const out = to.at(0, n);
    const float* const in = from + n * stride;
    int64_t row = 0;
    if (kSquares) {
      for (; row + kFloats <= rows; row += kFloats) {
        int64_t i = 0;
        for (; i + kFloats <= present; i += kFloats) {
          transpose(in + i * stride + row, stride, factor, out + row * width + i, width);
        }
        for (int64_t r = row; r < row + kFloats; r++) {
          for (int64_t j = i; j < present; j++) out[r * width + j] = in[j * stride + r] * factor;
          for (int64_t j = present; j < width; j++) out[r * width + j] = 0;
        }
      }
    }
    for (; row < rows; row++) {
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
  const float* row_factors;  // of the rows of C, or null
};

template <int R, int C, bool Accumulate, bool Factors>
inline void tile(const Product& p, int64_t m, const float* b, int64_t b_row, float* c) {
  const int64_t a_row = p.a_row, a_column = p.a_column, c_row = p.c_row, depth = p.depth;
  Vec sums[R][C];
  c += m * c_row;
  for (int r = 0; r < R; r++) {
    for (int j = 0; j < C; j++) sums[r][j] = Accumulate ? load(c + r * c_row + j * kFloats) : Vec{};
  }
  const float* a = p.a + m * a_row;
  for (int64_t k = 0; k < depth; k++, a += a_column, b += b_row) {
    Vec row[C];
    for (int j = 0; j < C; j++) row[j] = load(b + j * kFloats);
    for (int r = 0; r < R; r++) {
      const Vec factor = broadcast(a[r * a_row]);
      for (int j = 0; j < C; j++) sums[r][j] += factor * row[j];
    }
  }
  for (int r = 0; r < R; r++) {
    for (int j = 0; j < C; j++) {
      store(c + r * c_row + j * kFloats, Factors ? sums[r][j] * broadcast(p.row_factors[m + r]) : sums[r][j]);
    }
  }
}

template <int C, bool Accumulate, bool Factors>
void panel(const Product& p, int64_t rows, int64_t n) {
  const float* const b = p.b.at(p.b_first, n);
  const int64_t b_row = p.b.width(n);
  float* const c = p.c + n;
  int64_t m = 0;
  for (; m + kRows <= rows; m += kRows) tile<kRows, C, Accumulate, Factors>(p, m, b, b_row, c);
  switch (rows - m) {
    case 5: return tile<5, C, Accumulate, Factors>(p, m, b, b_row, c);
    case 4: return tile<4, C, Accumulate, Factors>(p, m, b, b_row, c);
    case 3: return tile<3, C, Accumulate, Factors>(p, m, b, b_row, c);
    case 2: return tile<2, C, Accumulate, Factors>(p, m, b, b_row, c);
    case 1: return tile<1, C, Accumulate, Factors>(p, m, b, b_row, c);
    default: return;
  }
}

template <bool Accumulate, bool Factors>
void panels(const Product& p, int64_t rows, int64_t columns) {
  int64_t n = 0;
  for (; n + kPanel <= columns; n += kPanel) panel<2, Accumulate, Factors>(p, rows, n);
  if (n < columns) panel<1, Accumulate, Factors>(p, rows, n);
}

// C gets row factors or is added to, never both. The first `columns` columns, a multiple of kFloats; C is padded to it.
inline void multiply(const Product& p, int64_t rows, int64_t columns) {
  if (p.accumulate) return panels<true, false>(p, rows, columns);
  if (p.row_factors) return panels<false, true>(p, rows, columns);
  return panels<false, false>(p, rows, columns);
}

}  // namespace steptime
