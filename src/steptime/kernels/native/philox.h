// Philox4x32-10, the counter-based generator of Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as
// 1, 2, 3", SC'11, on vectors of blocks. Each 32-bit state word sits in a 64-bit lane whose upper half is junk: the
// widening multiply reads the lower halves only, so a round is 2 multiplies, 2 shifts and 4 xors, with no shuffles.
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

struct Key {
  uint64_t seed;    // the generator's key
  uint64_t stream;  // the counter's upper 64 bits; the block number is its lower 64
};

constexpr int kBlocks = 64;          // blocks generated together
constexpr int kChunk = 4 * kBlocks;  // words they give
constexpr int kWidth = sizeof(Wide) / sizeof(uint64_t);

// Block i of the chunk gives words[2i], words[2i + 1], words[kChunk/2 + 2i], words[kChunk/2 + 2i + 1], whatever the
// vector width: an element's word depends on key and index only.
inline void philox_chunk(Key key, uint64_t chunk, uint32_t* words) {
  const Wide zero = {}, m0 = zero + 0xD2511F53u, m1 = zero + 0xCD9E8D57u, low_half = zero + 0xFFFFFFFFu;
  const uint64_t first = chunk * kBlocks;  // a multiple of kBlocks: adding a lane never carries into the upper word
  Wide lane = zero;
  for (int j = 0; j < kWidth; j++) lane[j] = j;
  constexpr int kTogether = 2;  // two independent chains hide the multiplier's latency
  for (int i = 0; i < kBlocks / kWidth; i += kTogether) {
    Wide c0[kTogether], c1[kTogether], c2[kTogether], c3[kTogether];
    for (int u = 0; u < kTogether; u++) {
      c0[u] = lane + (first + static_cast<uint64_t>((i + u) * kWidth));
      c1[u] = zero + (first >> 32);
      c2[u] = zero + key.stream;
      c3[u] = zero + (key.stream >> 32);
    }
    Wide k0 = zero + key.seed, k1 = zero + (key.seed >> 32);
    for (int round = 0; round < 10; round++) {
      for (int u = 0; u < kTogether; u++) {
        const Wide p0 = multiply_low_halves(c0[u], m0), p1 = multiply_low_halves(c2[u], m1);
        c0[u] = (p1 >> 32) ^ c1[u] ^ k0;
        c2[u] = (p0 >> 32) ^ c3[u] ^ k1;
        c1[u] = p1;
        c3[u] = p0;
      }
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    for (int u = 0; u < kTogether; u++) {
      const Wide first_two = (c0[u] & low_half) | (c1[u] << 32), last_two = (c2[u] & low_half) | (c3[u] << 32);
      __builtin_memcpy(words + (i + u) * 2 * kWidth, &first_two, sizeof(Wide));
      __builtin_memcpy(words + kChunk / 2 + (i + u) * 2 * kWidth, &last_two, sizeof(Wide));
    }
  }
}

// keep[i - begin] = 1 where element i of the key's stream is kept (word >= threshold), for i in [begin, end).
inline void philox_keep(Key key, int64_t begin, int64_t end, uint32_t threshold, uint8_t* keep) {
  alignas(64) uint32_t words[kChunk];
  alignas(64) uint8_t kept[kChunk];
  for (int64_t chunk = begin / kChunk; chunk * kChunk < end; chunk++) {
    philox_chunk(key, static_cast<uint64_t>(chunk), words);
    for (int i = 0; i < kChunk; i++) kept[i] = words[i] >= threshold;
    const int64_t start = chunk * kChunk;
    const int64_t low = start > begin ? start : begin, high = start + kChunk < end ? start + kChunk : end;
    __builtin_memcpy(keep + (low - begin), kept + (low - start), static_cast<size_t>(high - low));
  }
}

}  // namespace steptime
