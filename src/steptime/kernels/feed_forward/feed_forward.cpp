// y = drop2(drop1(act(x W1' + b1)) W2' + b2), a block of rows at a time in cache: forward and backward.
//
// The hidden layer, the widest tensor of a transformer, never goes to memory: forward keeps of it the dropout mask, a
// bit an element, and backward computes it again from x. With g = drop2'(dy), z = x W1' + b1 and D = mask / (1 - p1):
//   da = g W2 o D,  dz = da o act'(z),  dx = dz W1,  dW1 = dz' x,  db1 = 1' dz,  dW2' = (act(z) o D)' g,  db2 = 1' g.
#include <stdlib.h>

#include "../native/gelu.h"
#include "../native/gemm.h"
#include "../native/parallel.h"
#include "../native/philox.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

extern "C" {
// The same fields, in the same order, as feed_forward/native.py's Call. Widths are multiples of 16, rows contiguous.
struct SteptimeFeedForward {
  int64_t rows, in, hidden, out;
  const float *x, *w1, *b1, *w2, *b2;  // rows x in, hidden x in, hidden, out x hidden, out
  float* y;                            // rows x out
  const float* grad_y;
  float* grad_x;        // or null
  float* partials;      // slots x partial_floats
  float *grad_w1, *grad_b1, *grad_w2, *grad_b2;
  uint8_t *keep1, *keep2;  // masks of rows x hidden and rows x out bits, or null where nothing is dropped
  uint64_t seed;
  float scale1, scale2;  // 1 / (1 - p)
  uint32_t threshold1, threshold2;
  int32_t gelu;  // else the rectifier
  int32_t threads;
};
}

namespace {

using namespace steptime;
using Call = SteptimeFeedForward;

constexpr int64_t kBlockFloats = 12288;  // of one block of the hidden layer: two of them, and the weights, fit an L2
constexpr int64_t kLeastRows = 4 * kRows;

// Whole vectors, and never a multiple of 32: a column of the block, which the weight gradients read, then spreads over
// the sets of the cache.
int64_t hidden_stride(const Call& c) { return c.hidden % 32 == 0 ? c.hidden + 16 : c.hidden; }

int64_t block_rows(const Call& c) {
  const int64_t rows = kBlockFloats / c.hidden / kRows * kRows;
  return rows < kLeastRows ? kLeastRows : rows;
}

int64_t partial_floats(const Call& c) { return c.hidden * (c.in + c.out) + c.hidden + c.out; }

// Room of the calling thread that outlives the call: giving back and faulting in this much would cost more than a block.
float* scratch(int64_t floats) {
  struct Room {
    float* data = nullptr;
    int64_t size = 0;
    ~Room() { free(data); }
  };
  static thread_local Room room;
  if (room.size < floats) {
    free(room.data);
    void* memory = nullptr;
    if (posix_memalign(&memory, 64, static_cast<size_t>(floats) * sizeof(float))) abort();
    room.data = static_cast<float*>(memory);
    room.size = floats;
  }
  return room.data;
}

// Bits of rows [t0, t1) of a mask with `width` columns: drawn in forward, read in backward.
const uint8_t* keep_rows(uint8_t* keep, int64_t t0, int64_t t1, int64_t width, const Philox* draw, uint32_t threshold) {
  if (!keep) return nullptr;
  uint8_t* const at = keep + t0 * width / 8;
  if (draw) keep_range(*draw, t0 * width, t1 * width, threshold, at);
  return at;
}

inline Vec kept(Vec v, const uint8_t* keep, int64_t i) { return keep ? (Vec)((IVec)v & set_bits(keep, i)) : v; }

template <bool Gelu>
inline Vec act(Vec z) {
  return Gelu ? gelu(z) : select(z <= Vec{}, Vec{}, z);  // a NaN stays one
}
template <bool Gelu>
inline Vec act_derivative(Vec z) {
  return Gelu ? gelu_derivative(z) : select(z <= Vec{}, Vec{}, broadcast(1.0f));
}

template <bool Gelu>
void forward_blocks(const Call& c, int64_t first, int64_t last) {
  const int64_t block = block_rows(c), wide = hidden_stride(c);
  float* room = scratch(c.hidden * (c.in + c.out) + block * wide);
  const Panels w1 = pack_transposed(c.w1, c.in, c.in, c.hidden, 1.0f, room);
  const Panels w2 = pack_transposed(c.w2, c.hidden, c.hidden, c.out, 1.0f, room + c.in * c.hidden);
  float* const z = room + c.hidden * (c.in + c.out);
  const Philox draw1(c.seed, 0), draw2(c.seed, 1);
  for (int64_t b = first; b < last; b++) {
    const int64_t t0 = b * block, t1 = t0 + block < c.rows ? t0 + block : c.rows, rows = t1 - t0;
    multiply({c.x + t0 * c.in, c.in, 1, w1, 0, z, wide, c.in, false, nullptr}, rows, c.hidden);
    const uint8_t* const keep1 = keep_rows(c.keep1, t0, t1, c.hidden, &draw1, c.threshold1);
    for (int64_t t = 0; t < rows; t++) {
      float* const row = z + t * wide;
      const uint8_t* const bits = keep1 ? keep1 + t * c.hidden / 8 : nullptr;
      for (int64_t i = 0; i < c.hidden; i += kFloats) {
        store(row + i, kept(act<Gelu>(load(row + i) + load(c.b1 + i)) * c.scale1, bits, i));
      }
    }
    float* const y = c.y + t0 * c.out;
    multiply({z, wide, 1, w2, 0, y, c.out, c.hidden, false, nullptr}, rows, c.out);
    const uint8_t* const keep2 = keep_rows(c.keep2, t0, t1, c.out, &draw2, c.threshold2);
    for (int64_t t = 0; t < rows; t++) {
      const uint8_t* const bits = keep2 ? keep2 + t * c.out / 8 : nullptr;
      for (int64_t i = 0; i < c.out; i += kFloats) {
        float* const at = y + t * c.out + i;
        store(at, kept((load(at) + load(c.b2 + i)) * c.scale2, bits, i));
      }
    }
  }
}

// The gradients of the weights, summed over the blocks [first, last): dW1, dW2 transposed, db1, db2.
template <bool Gelu>
void backward_blocks(const Call& c, int64_t first, int64_t last, float* partial) {
  const int64_t block = block_rows(c), wide = hidden_stride(c), weights = c.hidden * (c.in + c.out);
  float* room = scratch(weights + c.hidden * c.in + 2 * block * wide + block * (c.in + 2 * c.out));
  const auto take = [&room](int64_t floats) { return room += floats, room - floats; };
  const Panels w1 = pack(c.w1, c.in, c.hidden, c.in, 1.0f, take(c.hidden * c.in));
  const Panels w1_transposed = pack_transposed(c.w1, c.in, c.in, c.hidden, 1.0f, take(c.hidden * c.in));
  const Panels w2 = pack(c.w2, c.hidden, c.out, c.hidden, c.scale1, take(c.out * c.hidden));
  float *const z = take(block * wide), *const da = take(block * wide);
  float *const g = take(block * c.out), *const x_room = take(block * c.in), *const g_room = take(block * c.out);
  float *const dw1 = partial, *const dw2 = dw1 + c.hidden * c.in, *const db1 = dw2 + c.hidden * c.out;
  float* const db2 = db1 + c.hidden;
  memset(partial, 0, static_cast<size_t>(partial_floats(c)) * sizeof(float));
  for (int64_t b = first; b < last; b++) {
    const int64_t t0 = b * block, t1 = t0 + block < c.rows ? t0 + block : c.rows, rows = t1 - t0;
    const float* const x = c.x + t0 * c.in;
    const uint8_t* const keep2 = keep_rows(c.keep2, t0, t1, c.out, nullptr, 0);
    for (int64_t t = 0; t < rows; t++) {
      const uint8_t* const bits = keep2 ? keep2 + t * c.out / 8 : nullptr;
      for (int64_t i = 0; i < c.out; i += kFloats) {
        const Vec v = kept(load(c.grad_y + (t0 + t) * c.out + i) * c.scale2, bits, i);
        store(g + t * c.out + i, v);
        store(db2 + i, load(db2 + i) + v);
      }
    }
    multiply({x, c.in, 1, w1_transposed, 0, z, wide, c.in, false, nullptr}, rows, c.hidden);
    multiply({g, c.out, 1, w2, 0, da, wide, c.out, false, nullptr}, rows, c.hidden);
    const uint8_t* const keep1 = keep_rows(c.keep1, t0, t1, c.hidden, nullptr, 0);
    for (int64_t t = 0; t < rows; t++) {
      const uint8_t* const bits = keep1 ? keep1 + t * c.hidden / 8 : nullptr;
      float *const z_row = z + t * wide, *const da_row = da + t * wide;
      for (int64_t i = 0; i < c.hidden; i += kFloats) {
        const Vec before = load(z_row + i) + load(c.b1 + i);
        const Vec dz = kept(load(da_row + i) * act_derivative<Gelu>(before), bits, i);
        store(z_row + i, kept(act<Gelu>(before), bits, i));
        store(da_row + i, dz);
        store(db1 + i, load(db1 + i) + dz);
      }
    }
    if (c.grad_x) multiply({da, wide, 1, w1, 0, c.grad_x + t0 * c.in, c.in, c.hidden, false, nullptr}, rows, c.in);
    // scale1 sits in w2 for dz, and in g for dW2
    const Panels x_panels = pack(x, c.in, rows, c.in, 1.0f, x_room);
    const Panels g_panels = pack(g, c.out, rows, c.out, c.scale1, g_room);
    multiply({da, 1, wide, x_panels, 0, dw1, c.in, rows, true, nullptr}, c.hidden, c.in);
    multiply({z, 1, wide, g_panels, 0, dw2, c.out, rows, true, nullptr}, c.hidden, c.out);
  }
}

// f(slot, first block, last block): a thread is one slot, whose sums are its own.
template <class F>
void for_slots(const Call& c, const F& f) {
  const int64_t blocks = (c.rows + block_rows(c) - 1) / block_rows(c), slots = c.threads;
  parallel_for(slots, c.threads, [&](int64_t begin, int64_t end) {
    for (int64_t slot = begin; slot < end; slot++) f(slot, blocks * slot / slots, blocks * (slot + 1) / slots);
  });
}

// The slots' sums, added up in their order.
void add_partials(const Call& c) {
  const int64_t floats = partial_floats(c), w1 = c.hidden * c.in, w2 = c.hidden * c.out;
  for (int64_t slot = 1; slot < c.threads; slot++) {
    for (int64_t i = 0; i < floats; i++) c.partials[i] += c.partials[slot * floats + i];
  }
  memcpy(c.grad_w1, c.partials, static_cast<size_t>(w1) * sizeof(float));
  memcpy(c.grad_b1, c.partials + w1 + w2, static_cast<size_t>(c.hidden) * sizeof(float));
  memcpy(c.grad_b2, c.partials + w1 + w2 + c.hidden, static_cast<size_t>(c.out) * sizeof(float));
  for (int64_t o = 0; o < c.out; o++) {
    for (int64_t h = 0; h < c.hidden; h++) c.grad_w2[o * c.hidden + h] = c.partials[w1 + h * c.out + o];
  }
}

}  // namespace

EXPORT void steptime_feed_forward(const SteptimeFeedForward* call) {
  for_slots(*call, [call](int64_t, int64_t first, int64_t last) {
    call->gelu ? forward_blocks<true>(*call, first, last) : forward_blocks<false>(*call, first, last);
  });
}

EXPORT void steptime_feed_forward_backward(const SteptimeFeedForward* call) {
  for_slots(*call, [call](int64_t slot, int64_t first, int64_t last) {
    float* const partial = call->partials + slot * partial_floats(*call);
    call->gelu ? backward_blocks<true>(*call, first, last, partial) : backward_blocks<false>(*call, first, last, partial);
  });
  add_partials(*call);
}

// For the binding's own check that both sides agree on the layout.
EXPORT int64_t steptime_feed_forward_call_bytes() { return sizeof(SteptimeFeedForward); }
