// Philox4x32-10, the counter-based generator of Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as
// 1, 2, 3", SC'11, on vectors of blocks. Each 32-bit state word sits in a 64-bit lane whose upper half is junk: the
// widening multiply reads the lower halves only, so a round is 2 multiplies, 2 shifts and 4 xors, with no shuffles.
//
// An element takes 16 bits of it. Only where those equal the threshold's upper 16 bits (1 element in 65,536) are
// 16 more drawn, from a second stream: the rate stays exact to 2^-33 for half the draws.
#pragma once
#include <stdint.h>
#if defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace steptime {

#if defined(__AVX512F__)
constexpr int kWideBytes = 64;
#elif defined(__AVX2__)
constexpr int kWideBytes = 32;
#else
constexpr int kWideBytes = 16;
#endif
typedef uint64_t Wide __attribute__((vector_size(kWideBytes)));

// The compiler's own names of vpmuludq, where it has them: <immintrin.h> would double the time of a build. clang has
// no such names and finds the instruction in the masked product; gcc does not.
#ifndef __has_builtin
#define __has_builtin(name) 0
#endif
inline Wide multiply_low_halves(Wide a, Wide b) {
#if defined(__AVX512F__) && __has_builtin(__builtin_ia32_pmuludq512_mask)
  typedef int Ints __attribute__((vector_size(64)));
  typedef long long Longs __attribute__((vector_size(64)));
  return (Wide)__builtin_ia32_pmuludq512_mask((Ints)a, (Ints)b, Longs{}, static_cast<unsigned char>(-1));
#elif !defined(__AVX512F__) && defined(__AVX2__) && __has_builtin(__builtin_ia32_pmuludq256)
  typedef int Ints __attribute__((vector_size(32)));
  return (Wide)__builtin_ia32_pmuludq256((Ints)a, (Ints)b);
#elif !defined(__AVX2__) && defined(__SSE2__) && __has_builtin(__builtin_ia32_pmuludq128)
  typedef int Ints __attribute__((vector_size(16)));
  return (Wide)__builtin_ia32_pmuludq128((Ints)a, (Ints)b);
#elif defined(__ARM_NEON)
  return (Wide)vmull_u32(vmovn_u64((uint64x2_t)a), vmovn_u64((uint64x2_t)b));
#else
  return (a & 0xFFFFFFFFu) * (b & 0xFFFFFFFFu);
#endif
}

constexpr int kRounds = 10;
constexpr int kBlocks = 32;             // blocks generated together
constexpr int kWords = 4 * kBlocks;     // words they give
constexpr int kChunk = 2 * kWords;      // elements: one a half word
constexpr int kChunkBytes = kChunk / 8;  // of their mask, a bit an element
constexpr int kWidth = sizeof(Wide) / sizeof(uint64_t);

// A key with its schedule laid out: a round then reads its keys as memory operands.
struct Philox {
  uint64_t seed;    // the generator's key
  uint64_t stream;  // the counter's upper 64 bits; the block number is its lower 64
  Wide k0[kRounds], k1[kRounds];

  Philox(uint64_t seed, uint64_t stream) : seed(seed), stream(stream) {
    Wide a = Wide{} + seed, b = Wide{} + (seed >> 32);
    for (int round = 0; round < kRounds; round++, a += 0x9E3779B9u, b += 0xBB67AE85u) k0[round] = a, k1[round] = b;
  }
};

// Block i of the chunk gives words[2i], words[2i + 1], words[kWords/2 + 2i], words[kWords/2 + 2i + 1], whatever the
// vector width: an element's bits depend on seed, stream and index only.
inline void philox_chunk(const Philox& p, uint64_t chunk, uint32_t* words) {
  const Wide zero = {}, m0 = zero + 0xD2511F53u, m1 = zero + 0xCD9E8D57u;
  const uint64_t first = chunk * kBlocks;  // a multiple of kBlocks: adding a lane never carries into the upper word
  Wide lane = zero;
  for (int j = 0; j < kWidth; j++) lane[j] = j;
  constexpr int kTogether = 2;  // two independent chains hide the multiplier's latency
  for (int i = 0; i < kBlocks / kWidth; i += kTogether) {
    Wide c0[kTogether], c1[kTogether], c2[kTogether], c3[kTogether];
    for (int u = 0; u < kTogether; u++) {
      c0[u] = lane + (first + static_cast<uint64_t>((i + u) * kWidth));
      c1[u] = zero + (first >> 32);
      c2[u] = zero + p.stream;
      c3[u] = zero + (p.stream >> 32);
    }
#pragma GCC unroll 10
    for (int round = 0; round < kRounds; round++) {
      for (int u = 0; u < kTogether; u++) {
        const Wide p0 = multiply_low_halves(c0[u], m0), p1 = multiply_low_halves(c2[u], m1);
        c0[u] = (p1 >> 32) ^ (c1[u] ^ p.k0[round]);
        c2[u] = (p0 >> 32) ^ (c3[u] ^ p.k1[round]);
        c1[u] = p1;
        c3[u] = p0;
      }
    }
    const Wide low_half = zero + 0xFFFFFFFFu;
    for (int u = 0; u < kTogether; u++) {
      const Wide first_two = (c0[u] & low_half) | (c1[u] << 32), last_two = (c2[u] & low_half) | (c3[u] << 32);
      __builtin_memcpy(words + (i + u) * 2 * kWidth, &first_two, sizeof(Wide));
      __builtin_memcpy(words + kWords / 2 + (i + u) * 2 * kWidth, &last_two, sizeof(Wide));
    }
  }
}

// The lower 16 bits of an element whose upper 16 equal the threshold's.
inline uint32_t philox_more(const Philox& p, uint64_t element) {
  const Philox other(p.seed, p.stream | uint64_t{1} << 63);
  uint32_t words[kWords];
  philox_chunk(other, element / kBlocks, words);
  return words[2 * (element % kBlocks)] & 0xFFFFu;
}

// Bit j of the result: halves[j] > least. Sets *tie where one equals it.
#if defined(__AVX2__) && __has_builtin(__builtin_ia32_packsswb256) && __has_builtin(__builtin_ia32_pmovmskb256) && \
    __has_builtin(__builtin_ia32_permdi256)
typedef uint32_t Bits;
inline Bits halves_above(const int16_t* halves, int16_t least, bool* tie) {
  typedef int16_t Halves __attribute__((vector_size(32)));
  typedef char Bytes __attribute__((vector_size(32)));
  typedef long long Longs __attribute__((vector_size(32)));
  Halves a, b;
  __builtin_memcpy(&a, halves, 32);
  __builtin_memcpy(&b, halves + 16, 32);
  const Halves bound = Halves{} + least;
  *tie |= __builtin_ia32_pmovmskb256((Bytes)((a == bound) | (b == bound))) != 0;
  const auto bytes = __builtin_ia32_packsswb256(a > bound, b > bound);  // 8 of a, 8 of b, 8 of a, 8 of b
  return static_cast<Bits>(__builtin_ia32_pmovmskb256((Bytes)__builtin_ia32_permdi256((Longs)bytes, 0xD8)));
}
#else
typedef uint8_t Bits;
inline Bits halves_above(const int16_t* halves, int16_t least, bool* tie) {
  uint8_t above[8], equal[8];
  for (int j = 0; j < 8; j++) above[j] = halves[j] > least, equal[j] = halves[j] == least;
  uint64_t eight, ties;
  __builtin_memcpy(&eight, above, 8);
  __builtin_memcpy(&ties, equal, 8);
  *tie |= ties != 0;
  return static_cast<Bits>(eight * 0x0102040810204080u >> 56);  // byte j's lowest bit moves to bit j
}
#endif

// Bit i of `bits` tells whether element i of the chunk is kept: whether its 32 bits are at least the threshold. The
// upper 16 are half word i read as signed, plus 2^15: vectors compare signed numbers only.
inline void keep_chunk(const Philox& p, uint64_t chunk, uint32_t threshold, uint8_t* bits) {
  alignas(64) uint32_t words[kWords];
  philox_chunk(p, chunk, words);
  alignas(64) int16_t halves[kChunk];
  __builtin_memcpy(halves, words, sizeof halves);
  const auto bound = static_cast<int16_t>(static_cast<int32_t>(threshold >> 16) - 32768);
  bool tie = false;
  for (int at = 0; at < kChunk; at += 8 * static_cast<int>(sizeof(Bits))) {
    const Bits above = halves_above(halves + at, bound, &tie);
    __builtin_memcpy(bits + at / 8, &above, sizeof above);
  }
  if (__builtin_expect(tie, 0)) {
    for (int i = 0; i < kChunk; i++) {
      if (halves[i] == bound && philox_more(p, chunk * kChunk + static_cast<uint64_t>(i)) >= (threshold & 0xFFFFu)) {
        bits[i / 8] = static_cast<uint8_t>(bits[i / 8] | 1u << i % 8);
      }
    }
  }
}

// The mask of elements [begin, end) of the stream, both multiples of 8, a bit an element.
inline void keep_range(const Philox& p, int64_t begin, int64_t end, uint32_t threshold, uint8_t* bits) {
  for (int64_t chunk = begin / kChunk; chunk * kChunk < end; chunk++) {
    const int64_t start = chunk * kChunk;
    if (start >= begin && start + kChunk <= end) {
      keep_chunk(p, static_cast<uint64_t>(chunk), threshold, bits + (start - begin) / 8);
    } else {
      uint8_t room[kChunkBytes];
      keep_chunk(p, static_cast<uint64_t>(chunk), threshold, room);
      const int64_t low = start > begin ? start : begin, high = start + kChunk < end ? start + kChunk : end;
      __builtin_memcpy(bits + (low - begin) / 8, room + (low - start) / 8, static_cast<size_t>((high - low) / 8));
    }
  }
}

}  // namespace steptime
