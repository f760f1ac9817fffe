// What a formula of masks.predicate becomes on the GPU: the operators that C++ leaves undefined,
// and the same operators on spans of integers, for the state of a tile.
// stof_cupy/masks/formula_cuda.py writes the expressions; formula_numpy.py and formula_span.py have
// the same rules, and tests/masks/test_formula_cuda.py holds them together.
#pragma once

#include "types.cuh"

namespace stof::mask {

constexpr i64 kHighest = 0x7fffffffffffffffLL;
constexpr i64 kLowest = -kHighest - 1;

// 64-bit integers wrap.
__device__ __forceinline__ i64 add(i64 a, i64 b) {
  return static_cast<i64>(static_cast<u64>(a) + static_cast<u64>(b));
}
__device__ __forceinline__ i64 sub(i64 a, i64 b) {
  return static_cast<i64>(static_cast<u64>(a) - static_cast<u64>(b));
}
__device__ __forceinline__ i64 mul(i64 a, i64 b) {
  return static_cast<i64>(static_cast<u64>(a) * static_cast<u64>(b));
}
__device__ __forceinline__ i64 neg(i64 a) { return sub(0, a); }

// Rounded by itself: NumPy has no fused multiply-add.
__device__ __forceinline__ double mul(double a, double b) {
#ifdef __CUDACC__
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}

// Towards zero, and 0 for a divisor of 0.
__device__ __forceinline__ int quot(int a, int b) { return b == 0 ? 0 : a / b; }
__device__ __forceinline__ i64 quot(i64 a, i64 b) {
  return b == 0 ? 0 : b == -1 ? neg(a) : a / b;  // kLowest / -1 traps
}
template <typename T>
__device__ __forceinline__ T rem(T a, T b) {
  return b == 0 || b == -1 ? 0 : a % b;
}

// Counts are taken modulo 64.
__device__ __forceinline__ i64 shl(i64 a, i64 n) {
  return static_cast<i64>(static_cast<u64>(a) << (n & 63));
}
__device__ __forceinline__ int shl(int a, i64 n) {  // of counts below 32, results that fit
  return static_cast<int>(static_cast<u32>(a) << n);
}
__device__ __forceinline__ i64 shr(i64 a, i64 n) { return a >> (n & 63); }
__device__ __forceinline__ int shr(int a, i64 n) {
  const int count = static_cast<int>(n & 63);
  return a >> (count < 31 ? count : 31);
}

__device__ __forceinline__ int magnitude(int a) { return a < 0 ? -a : a; }
__device__ __forceinline__ i64 magnitude(i64 a) { return a < 0 ? neg(a) : a; }
__device__ __forceinline__ double magnitude(double a) { return a < 0 ? -a : a; }

// Of operands that are not ordered (NaN), and of equal ones, the first.
template <typename T>
__device__ __forceinline__ T least(T a, T b) {
  return b < a ? b : a;
}
template <typename T>
__device__ __forceinline__ T most(T a, T b) {
  return a < b ? b : a;
}

// A float as a double, whatever the flags: -ftz=true makes a cast of a subnormal 0.
__device__ __forceinline__ double widen(float x) {
#ifdef __CUDACC__
  double r;
  asm("cvt.f64.f32 %0, %1;" : "=d"(r) : "f"(x));
  return r;
#else
  return x;
#endif
}

// Integers from lo to hi. Truth is one of them too: {1, 1}, {0, 0}, or {0, 1} where it is not
// known.
struct Span {
  i64 lo, hi;
};

constexpr Span kAnything = {kLowest, kHighest};
constexpr Span kMaybe = {0, 1};

__device__ __forceinline__ Span point(i64 value) { return {value, value}; }
__device__ __forceinline__ bool settled(Span a) { return a.lo == a.hi; }
__device__ __forceinline__ bool within(Span a, i64 most) { return a.lo >= -most && a.hi <= most; }

template <typename Operation>
__device__ __forceinline__ Span corners(Span a, Span b, Operation op) {
  const i64 w = op(a.lo, b.lo), x = op(a.lo, b.hi), y = op(a.hi, b.lo), z = op(a.hi, b.hi);
  return {least(least(w, x), least(y, z)), most(most(w, x), most(y, z))};
}

constexpr i64 kAddable = (1LL << 62) - 1;
constexpr i64 kMultipliable = 1LL << 31;

__device__ __forceinline__ Span add(Span a, Span b) {
  if (!within(a, kAddable) || !within(b, kAddable)) return kAnything;
  return {a.lo + b.lo, a.hi + b.hi};
}
__device__ __forceinline__ Span sub(Span a, Span b) {
  if (!within(a, kAddable) || !within(b, kAddable)) return kAnything;
  return {a.lo - b.hi, a.hi - b.lo};
}
__device__ __forceinline__ Span mul(Span a, Span b) {
  if (!within(a, kMultipliable) || !within(b, kMultipliable)) return kAnything;
  return corners(a, b, [](i64 x, i64 y) { return x * y; });
}
__device__ __forceinline__ Span neg(Span a) {
  return a.lo == kLowest ? kAnything : Span{-a.hi, -a.lo};
}
__device__ __forceinline__ Span same(Span a) { return a; }

__device__ __forceinline__ Span quot(Span a, Span b) {
  if (a.lo == kLowest) return kAnything;
  if (b.lo <= 0 && b.hi >= 0) {  // maybe by 0, else at least by 1
    const i64 size = most(a.hi, -a.lo);
    return {a.lo >= 0 && b.lo >= 0 ? 0 : -size, size};
  }
  return corners(a, b, [](i64 x, i64 y) { return x / y; });
}
__device__ __forceinline__ Span rem(Span a, Span b) {
  // One multiple of the divisor lies at or below all of them.
  if (settled(b) && b.lo > 0 && a.lo >= 0 && a.lo / b.lo == a.hi / b.lo) {
    return {a.lo % b.lo, a.hi % b.lo};
  }
  const i64 size = most(b.hi > 0 ? b.hi - 1 : 0, b.lo < 0 ? ~b.lo : 0);
  return {a.lo < 0 ? most(a.lo, -size) : 0, a.hi > 0 ? least(a.hi, size) : 0};
}

__device__ __forceinline__ Span counts(Span n) {
  if (settled(n)) return point(n.lo & 63);
  return n.lo >= 0 && n.hi <= 63 ? n : Span{0, 63};
}
__device__ __forceinline__ Span shl(Span a, Span n) {
  const Span by = counts(n);
  if (!within(a, kMultipliable) || by.hi > 31) return kAnything;
  return corners(a, by, [](i64 x, i64 y) { return x * (1LL << y); });
}
__device__ __forceinline__ Span shr(Span a, Span n) {
  return corners(a, counts(n), [](i64 x, i64 y) { return x >> y; });
}

// The least 2^n - 1 so that both are in [-2^n, 2^n - 1].
__device__ __forceinline__ i64 ones(Span a, Span b) {
  i64 x = most(most(a.hi, ~a.lo), most(b.hi, ~b.lo));
  for (int shift = 1; shift < 64; shift *= 2) x |= x >> shift;
  return x;
}
__device__ __forceinline__ Span bit_and(Span a, Span b) {
  if (settled(a) && settled(b)) return point(a.lo & b.lo);
  const i64 all = ones(a, b);
  return {a.lo >= 0 || b.lo >= 0 ? 0 : ~all,
          least(a.lo >= 0 ? least(all, a.hi) : all, b.lo >= 0 ? b.hi : all)};
}
__device__ __forceinline__ Span bit_or(Span a, Span b) {
  if (settled(a) && settled(b)) return point(a.lo | b.lo);
  const i64 all = ones(a, b);
  return {a.lo >= 0 && b.lo >= 0 ? most(a.lo, b.lo) : ~all, all};
}
__device__ __forceinline__ Span bit_xor(Span a, Span b) {
  if (settled(a) && settled(b)) return point(a.lo ^ b.lo);
  const i64 all = ones(a, b);
  return {a.lo >= 0 && b.lo >= 0 ? 0 : ~all, all};
}
__device__ __forceinline__ Span inv(Span a) { return {~a.hi, ~a.lo}; }

__device__ __forceinline__ Span magnitude(Span a) {
  if (a.lo == kLowest) return kAnything;
  return {most<i64>(most(a.lo, -a.hi), 0), most(a.hi, -a.lo)};
}
__device__ __forceinline__ Span least(Span a, Span b) {
  return {least(a.lo, b.lo), least(a.hi, b.hi)};
}
__device__ __forceinline__ Span most(Span a, Span b) {
  return {most(a.lo, b.lo), most(a.hi, b.hi)};
}

__device__ __forceinline__ Span truth(Span a) {
  return {a.lo > 0 || a.hi < 0, a.lo != 0 || a.hi != 0};
}
__device__ __forceinline__ Span none(Span a) {
  const Span x = truth(a);
  return {1 - x.hi, 1 - x.lo};
}
__device__ __forceinline__ Span both(Span a, Span b) { return least(truth(a), truth(b)); }
__device__ __forceinline__ Span either(Span a, Span b) { return most(truth(a), truth(b)); }
__device__ __forceinline__ Span choose(Span condition, Span a, Span b) {
  const Span c = truth(condition);
  if (c.lo > 0) return a;
  return c.hi == 0 ? b : Span{least(a.lo, b.lo), most(a.hi, b.hi)};
}

__device__ __forceinline__ Span lt(Span a, Span b) { return {a.hi < b.lo, a.lo < b.hi}; }
__device__ __forceinline__ Span le(Span a, Span b) { return {a.hi <= b.lo, a.lo <= b.hi}; }
__device__ __forceinline__ Span gt(Span a, Span b) { return lt(b, a); }
__device__ __forceinline__ Span ge(Span a, Span b) { return le(b, a); }
__device__ __forceinline__ Span eq(Span a, Span b) {
  return {settled(a) && settled(b) && a.lo == b.lo, a.lo <= b.hi && b.lo <= a.hi};
}
__device__ __forceinline__ Span ne(Span a, Span b) { return none(eq(a, b)); }

// 0: no element of the box, 2: all of them, 1: not known.
__device__ __forceinline__ int state(Span a) {
  const Span x = truth(a);
  return static_cast<int>(x.lo + x.hi);
}

}  // namespace stof::mask
