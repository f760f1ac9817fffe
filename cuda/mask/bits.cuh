// Words of 64 mask elements, least significant first, and the integers they are made with. Plain
// C++, as mask/leaves.cuh.
#pragma once

#include "types.cuh"

namespace stof::mask {

// Kleene's three values, as in stof_cupy/masks/runs.py; part also means "not known".
enum State : int { kEmpty, kPart, kFull };

template <typename T>
__device__ constexpr T smaller(T a, T b) {
  return a < b ? a : b;
}

template <typename T>
__device__ constexpr T larger(T a, T b) {
  return a < b ? b : a;
}

__device__ constexpr int floor_div(int a, int b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }

// The `count` lowest bits, of which there may be fewer than none or more than 64.
__device__ constexpr u64 low_bits(i64 count) {
  return count <= 0 ? 0 : count >= 64 ? ~u64{0} : (u64{1} << count) - 1;
}

// Bits [start, stop), wherever they lie.
__device__ constexpr u64 span_bits(i64 start, i64 stop) {
  return low_bits(stop) & ~low_bits(start);
}

__device__ inline i64 floor_word(i64 bit) { return bit >= 0 ? bit / 64 : -((63 - bit) / 64); }

// Bits `first` .. `first + 63` of an array of `count` words; 0 where it has none.
__device__ inline u64 bits_at(const u64* words, int count, i64 first) {
  const i64 at = floor_word(first);
  const int shift = static_cast<int>(first - at * 64);
  const u64 low = at >= 0 && at < count ? words[at] >> shift : 0;
  if (shift == 0 || at + 1 < 0 || at + 1 >= count) return low;
  return low | words[at + 1] << (64 - shift);
}

// Whether none (0), some (1) or all (2) of bits [first, last) of `word(first), ...` are set, where
// word(k) holds bits k .. k + 63.
template <typename At, typename Word>
__device__ inline State words_state(At first, At last, Word word) {
  bool some = false, all = true;
  for (At at = first; at < last; at += 64) {
    const u64 inside = low_bits(last - at);
    const u64 bits = word(at) & inside;
    some = some || bits != 0;
    all = all && bits == inside;
  }
  return all ? kFull : some ? kPart : kEmpty;
}

__device__ inline State bits_state(const u64* words, int count, i64 first, i64 last) {
  return words_state(first, last, [&](i64 at) { return bits_at(words, count, at); });
}

// One bit for each of sixteen bytes, whether it is not 0; `bytes` is 16-byte aligned.
__device__ inline u32 nonzero_bytes(const u8* bytes) {
  struct alignas(16) Four {
    u32 x[4];
  };
  const Four four = *reinterpret_cast<const Four*>(bytes);
  u32 bits = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const u32 x = four.x[i];
    const u32 ones = (((x & 0x7f7f7f7f) + 0x7f7f7f7f) | x) >> 7 & 0x01010101;
    bits |= ones * 0x10204080 >> 28 << 4 * i;  // byte b to bit 28 + b
  }
  return bits;
}

__device__ inline float float_of_bits(u32 bits) {
  union {
    u32 from;
    float to;
  } same = {bits};
  return same.to;
}

// The value of a half: exact, whatever its exponent.
__device__ inline float half_value(u16 bits) {
  const u32 sign = static_cast<u32>(bits & 0x8000) << 16;
  const u32 exponent = bits >> 10 & 31, fraction = bits & 0x3ff;
  if (exponent == 31) return float_of_bits(sign | 0x7f800000 | fraction << 13);
  if (exponent != 0) return float_of_bits(sign | (exponent + 112) << 23 | fraction << 13);
  const float tiny = static_cast<float>(fraction) * 0x1p-24f;
  return sign ? -tiny : tiny;
}

}  // namespace stof::mask
