// softmax(q k^T scale + mask) with dropout, times v: forward and backward, one (batch, head) at a time in cache.
//
// Forward keeps per row only the maximum score and the inverse of its sum of exponentials (and, where given room, the
// dropout mask, a bit a score); backward computes the probabilities again from them (Dao et al., "FlashAttention",
// 2022). Scores are in units of log 2, so that exp is 2^x. With D = dropout mask / (1 - p):
//   dV = (P o D)^T dO,  dP = (dO V^T) o D,  dS = P o (dP - rowsum(dO o O)),  dQ = scale dS K,  dK = scale dS^T Q.
#include <stdlib.h>

#include "../native/parallel.h"
#include "../native/philox.h"
#include "../native/gemm.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using namespace steptime;

// A (batch, head, row, column) view whose last stride is 1 (but for the additive mask, which may broadcast).
struct View {
  float* data;
  int64_t batch, head, row, column;
  float* at(int64_t b, int64_t h) const { return data + b * batch + h * head; }
};

}  // namespace

extern "C" {
// The same fields, in the same order, as attention/native.py's Call.
struct SteptimeAttention {
  int64_t batches, heads, queries, keys, depth;
  View q, k, v, out, mask;  // mask.data is null where there is none
  View grad_out, grad_q, grad_k, grad_v;
  float* stats;   // batches x heads x queries x 2: see RowStats
  uint8_t* keep;  // batches x heads x queries x mask_stride(keys) bits, or null: generated again in backward
  uint64_t seed;
  float scale, rescale;  // rescale = 1 / (1 - p)
  uint32_t threshold;
  int32_t causal, threads;
};
}

namespace {

using Call = SteptimeAttention;

constexpr float kLog2E = 1.44269504088896341f;
constexpr float kInfinity = __builtin_inff();
constexpr int64_t kScoresInCache = 16384;  // floats of one block of scores: 64 KiB, two of which an L2 holds
constexpr int64_t kLeastRows = 8 * kRows;  // the gradients of K and V are read and written once a block

// Floats from one row of scores to the next: whole vectors, and never a multiple of 32, so that a column of scores,
// which the backward products read, spreads over the sets of the cache.
int64_t score_stride(const Call& c) {
  const int64_t width = padded(c.keys);
  return width % 32 == 0 ? width + 16 : width;
}

// What backward needs of a row: p = 2^(score - top) * inverse. A row that may look nowhere has top = inverse = 0.
struct RowStats {
  float top, inverse;
};

// Bits from one row of the dropout mask to the next: whole vectors of any width.
int64_t mask_stride(const Call& c) { return (c.keys + 15) / 16 * 16; }

// Rows of scores worked on together: few enough to stay in cache, enough to amortise the pass over K and V.
int64_t block_rows(const Call& c) {
  int64_t rows = kScoresInCache / score_stride(c) / kRows * kRows;
  if (rows < kLeastRows) rows = kLeastRows;
  return rows < c.queries ? rows : c.queries;
}

// One allocation a thread, cut into aligned pieces.
class Arena {
 public:
  explicit Arena(int64_t floats) {
    void* memory = nullptr;
    if (posix_memalign(&memory, 64, static_cast<size_t>(floats) * sizeof(float))) abort();
    start_ = next_ = static_cast<float*>(memory);
  }
  ~Arena() { free(start_); }
  Arena(const Arena&) = delete;
  float* take(int64_t floats) {
    float* piece = next_;
    next_ += (floats + 15) / 16 * 16;
    return piece;
  }

 private:
  float *start_, *next_;
};

void copy_rows(const float* from, int64_t width, float* to, int64_t stride, int64_t rows, int64_t depth) {
  for (int64_t s = 0; s < rows; s++) memcpy(to + s * stride, from + s * width, static_cast<size_t>(depth) * 4);
}

// Adds the mask to a row of scores, and -inf where the row may not look: behind `keys`, and after t if causal.
void mask_row(const Call& c, int64_t b, int64_t h, int64_t t, float* row, int64_t columns) {
  const int64_t visible = c.causal && t + 1 < c.keys ? t + 1 : c.keys;
  if (c.mask.data) {
    const float* mask = c.mask.at(b, h) + t * c.mask.row;
    if (c.mask.column == 1) {
      for (int64_t s = 0; s < visible; s++) row[s] += mask[s] * kLog2E;
    } else {
      for (int64_t s = 0; s < visible; s++) row[s] += mask[s * c.mask.column] * kLog2E;
    }
  }
  for (int64_t s = visible; s < columns; s++) row[s] = -kInfinity;
}

// The keys that the rows before `end` may look at.
int64_t visible_keys(const Call& c, int64_t end) { return c.causal && end < c.keys ? end : c.keys; }

// The dropout mask of rows [t0, t1): element (t, s) of head i is element t * mask_stride + s of the generator's
// stream i.
const uint8_t* keep_rows(const Call& c, int64_t head, int64_t t0, int64_t t1, uint8_t* room, bool saved) {
  const int64_t stride = mask_stride(c);
  uint8_t* keep = c.keep ? c.keep + (head * c.queries + t0) * stride / 8 : room;
  if (!(c.keep && saved)) {
    keep_range(Philox(c.seed, static_cast<uint64_t>(head)), t0 * stride, t1 * stride, c.threshold, keep);
  }
  return keep;
}

// Scores become exponentials, zero where dropped; returns what turns them into probabilities, before the dropout's
// rescaling. Rows that may look nowhere get zeros, as torch's safe softmax gives.
RowStats softmax_row(float* row, int64_t columns, const uint8_t* keep) {
  Vec most = broadcast(-kInfinity);
  for (int64_t s = 0; s < columns; s += kFloats) most = larger(load(row + s), most);
  const float found = maximum(most), top = found == -kInfinity ? 0.0f : found;
  Vec total = {};
  const Vec base = broadcast(top);
  for (int64_t s = 0; s < columns; s += kFloats) {
    const Vec e = exponential2(load(row + s) - base);
    total += e;
    store(row + s, (Vec)((IVec)e & set_bits(keep, s)));
  }
  const float z = sum(total);
  return {top, z == 0.0f ? 0.0f : 1.0f / z};
}

void forward_heads(const Call& c, int64_t begin, int64_t end) {
  const int64_t wide = score_stride(c), deep = padded(c.depth), block = block_rows(c);
  Arena arena(panel_floats(c.depth, c.keys) + c.keys * deep + block * (wide + deep + 1) +
              block * mask_stride(c) / 32 + 128);
  float* const k_room = arena.take(panel_floats(c.depth, c.keys));
  float* const v_room = arena.take(c.keys * deep);
  float* const scores = arena.take(block * wide);
  float* const out_room = arena.take(block * deep);
  float* const factors = arena.take(block);
  auto* const keep_room = reinterpret_cast<uint8_t*>(arena.take(block * mask_stride(c) / 32 + 1));
  for (int64_t head = begin; head < end; head++) {
    const int64_t b = head / c.heads, h = head % c.heads;
    const Panels k = pack_transposed(c.k.at(b, h), c.k.row, c.depth, c.keys, c.scale * kLog2E, k_room);
    const Panels v = pack(c.v.at(b, h), c.v.row, c.keys, c.depth, 1.0f, v_room);
    for (int64_t t0 = 0; t0 < c.queries; t0 += block) {
      const int64_t t1 = t0 + block < c.queries ? t0 + block : c.queries, rows = t1 - t0;
      const int64_t keys = visible_keys(c, t1), columns = padded(keys);
      const float* const q = c.q.at(b, h) + t0 * c.q.row;
      multiply({q, c.q.row, 1, k, 0, scores, wide, c.depth, false, nullptr}, rows, columns);
      const uint8_t* keep = keep_rows(c, head, t0, t1, keep_room, false);
      for (int64_t t = t0; t < t1; t++) {
        float* row = scores + (t - t0) * wide;
        mask_row(c, b, h, t, row, columns);
        const RowStats stats = softmax_row(row, columns, keep + (t - t0) * mask_stride(c) / 8);
        reinterpret_cast<RowStats*>(c.stats)[head * c.queries + t] = stats;
        factors[t - t0] = stats.inverse * c.rescale;
      }
      float* const out = c.out.at(b, h) + t0 * c.out.row;
      if (deep == c.depth) {
        multiply({scores, wide, 1, v, 0, out, c.out.row, keys, false, factors}, rows, deep);
      } else {
        multiply({scores, wide, 1, v, 0, out_room, deep, keys, false, factors}, rows, deep);
        copy_rows(out_room, deep, out, c.out.row, rows, c.depth);
      }
    }
  }
}

float dot(const float* a, const float* b, int64_t n) {
  Vec total = {};
  int64_t i = 0;
  for (; i + kFloats <= n; i += kFloats) total += load(a + i) * load(b + i);
  float rest = sum(total);
  for (; i < n; i++) rest += a[i] * b[i];
  return rest;
}

// In: scores, and dO V^T / (1 - p). Out: P o mask in `scores`, dS in `grads`.
void softmax_backward_row(float* scores, float* grads, int64_t columns, const uint8_t* keep, RowStats stats,
                          float delta) {
  const Vec base = broadcast(stats.top), inverse = broadcast(stats.inverse), less = broadcast(delta);
  const Vec one = broadcast(1.0f);
  for (int64_t s = 0; s < columns; s += kFloats) {
    const Vec probability = exponential2(load(scores + s) - base) * inverse;
    const Vec factor = (Vec)((IVec)one & set_bits(keep, s));
    store(scores + s, probability * factor);
    store(grads + s, probability * (load(grads + s) * factor - less));
  }
}

// A head's gradient of K or V, added up over blocks of rows: in place where rows are whole vectors.
struct Gradient {
  float* data;
  int64_t stride;
};

void backward_heads(const Call& c, int64_t begin, int64_t end) {
  const int64_t wide = score_stride(c), deep = padded(c.depth), block = block_rows(c);
  const bool whole = deep == c.depth;
  Arena arena(2 * panel_floats(c.depth, c.keys) + 3 * c.keys * deep + 2 * c.queries * deep +
              block * (2 * wide + deep) + block * mask_stride(c) / 32 + 256);
  float* const k_transposed_room = arena.take(panel_floats(c.depth, c.keys));
  float* const v_transposed_room = arena.take(panel_floats(c.depth, c.keys));
  float* const k_room = arena.take(c.keys * deep);
  float* const grad_k_room = arena.take(c.keys * deep);
  float* const grad_v_room = arena.take(c.keys * deep);
  float* const q_room = arena.take(c.queries * deep);
  float* const grad_out_room = arena.take(c.queries * deep);
  float* const scores = arena.take(block * wide);
  float* const grads = arena.take(block * wide);
  float* const grad_q_room = arena.take(block * deep);
  auto* const keep_room = reinterpret_cast<uint8_t*>(arena.take(block * mask_stride(c) / 32 + 1));
  for (int64_t head = begin; head < end; head++) {
    const int64_t b = head / c.heads, h = head % c.heads;
    const Panels k_transposed =
        pack_transposed(c.k.at(b, h), c.k.row, c.depth, c.keys, c.scale * kLog2E, k_transposed_room);
    const Panels v_transposed = pack_transposed(c.v.at(b, h), c.v.row, c.depth, c.keys, c.rescale, v_transposed_room);
    const Panels k = pack(c.k.at(b, h), c.k.row, c.keys, c.depth, c.scale, k_room);
    // the factors of the formulas above go into the packed operands: a score's own work stays small
    const Panels q = pack(c.q.at(b, h), c.q.row, c.queries, c.depth, c.scale, q_room);
    const Panels grad_out =
        pack(c.grad_out.at(b, h), c.grad_out.row, c.queries, c.depth, c.rescale, grad_out_room);
    const Gradient grad_k = whole ? Gradient{c.grad_k.at(b, h), c.grad_k.row} : Gradient{grad_k_room, deep};
    const Gradient grad_v = whole ? Gradient{c.grad_v.at(b, h), c.grad_v.row} : Gradient{grad_v_room, deep};
    if (c.causal) {  // the first block does not reach all keys
      for (int64_t s = 0; s < c.keys; s++) {
        memset(grad_k.data + s * grad_k.stride, 0, static_cast<size_t>(deep) * 4);
        memset(grad_v.data + s * grad_v.stride, 0, static_cast<size_t>(deep) * 4);
      }
    }
    for (int64_t t0 = 0; t0 < c.queries; t0 += block) {
      const int64_t t1 = t0 + block < c.queries ? t0 + block : c.queries, rows = t1 - t0;
      const int64_t keys = visible_keys(c, t1), columns = padded(keys);
      const float* const q_rows = c.q.at(b, h) + t0 * c.q.row;
      const float* const grad_out_rows = c.grad_out.at(b, h) + t0 * c.grad_out.row;
      multiply({q_rows, c.q.row, 1, k_transposed, 0, scores, wide, c.depth, false, nullptr}, rows, columns);
      multiply({grad_out_rows, c.grad_out.row, 1, v_transposed, 0, grads, wide, c.depth, false, nullptr}, rows, columns);
      const uint8_t* keep = keep_rows(c, head, t0, t1, keep_room, true);
      for (int64_t t = t0; t < t1; t++) {
        const int64_t at = (t - t0) * wide;
        mask_row(c, b, h, t, scores + at, columns);
        const float delta = dot(grad_out_rows + (t - t0) * c.grad_out.row, c.out.at(b, h) + t * c.out.row, c.depth);
        softmax_backward_row(scores + at, grads + at, columns, keep + (t - t0) * mask_stride(c) / 8,
                             reinterpret_cast<const RowStats*>(c.stats)[head * c.queries + t], delta);
      }
      const bool add = c.causal || t0 > 0;
      multiply({scores, 1, wide, grad_out, t0, grad_v.data, grad_v.stride, rows, add, nullptr}, keys, deep);
      multiply({grads, 1, wide, q, t0, grad_k.data, grad_k.stride, rows, add, nullptr}, keys, deep);
      float* const grad_q = c.grad_q.at(b, h) + t0 * c.grad_q.row;
      if (whole) {
        multiply({grads, wide, 1, k, 0, grad_q, c.grad_q.row, keys, false, nullptr}, rows, deep);
      } else {
        multiply({grads, wide, 1, k, 0, grad_q_room, deep, keys, false, nullptr}, rows, deep);
        copy_rows(grad_q_room, deep, grad_q, c.grad_q.row, rows, c.depth);
      }
    }
    if (!whole) {
      copy_rows(grad_k_room, deep, c.grad_k.at(b, h), c.grad_k.row, c.keys, c.depth);
      copy_rows(grad_v_room, deep, c.grad_v.at(b, h), c.grad_v.row, c.keys, c.depth);
    }
  }
}

}  // namespace

EXPORT void steptime_attention_forward(const SteptimeAttention* call) {
  parallel_for(call->batches * call->heads, call->threads,
               [call](int64_t begin, int64_t end) { forward_heads(*call, begin, end); });
}

EXPORT void steptime_attention_backward(const SteptimeAttention* call) {
  parallel_for(call->batches * call->heads, call->threads,
               [call](int64_t begin, int64_t end) { backward_heads(*call, begin, end); });
}

// The dropout mask by itself: batches x heads x queries x keys bytes, 0 or 1, at call->keep.
EXPORT void steptime_attention_mask(const SteptimeAttention* call) {
  const Call& c = *call;
  parallel_for(c.batches * c.heads, c.threads, [&c](int64_t begin, int64_t end) {
    const int64_t stride = mask_stride(c);
    Arena arena(stride / 32 + 32);
    auto* const bits = reinterpret_cast<uint8_t*>(arena.take(stride / 32 + 1));
    for (int64_t head = begin; head < end; head++) {
      const Philox generator(c.seed, static_cast<uint64_t>(head));
      for (int64_t t = 0; t < c.queries; t++) {
        keep_range(generator, t * stride, (t + 1) * stride, c.threshold, bits);
        uint8_t* const row = c.keep + (head * c.queries + t) * c.keys;
        for (int64_t s = 0; s < c.keys; s++) row[s] = bits[s / 8] >> s % 8 & 1;
      }
    }
  });
}

// For the binding's own check that both sides agree on the layout.
EXPORT int64_t steptime_attention_call_bytes() { return sizeof(SteptimeAttention); }
