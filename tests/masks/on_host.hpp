// What a kernel of cuda/ needs of CUDA, on the CPU: the threads of a CTA are coroutines of one
// thread, which change places where they wait for each other. Compiled by tests/masks/on_host.py,
// once what is in on_host.cpp: a kernel compiles little more than itself.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#define __device__
#define __forceinline__ inline

struct Index {
  unsigned x, y, z;
};
extern __thread Index threadIdx, blockIdx, gridDim;
using std::max;
using std::min;

struct uint2 {
  unsigned x, y;
};
struct uint4 {
  unsigned x, y, z, w;
};
struct float2 {
  float x, y;
};
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline float2 make_float2(float x, float y) { return {x, y}; }

namespace host {

// Waits until somebody changes it.
void wait_for_change(const unsigned& of);

// Lets others come first.
void give_way();

// Wait for all threads of the CTA, or of the warp.
void meet();
void meet_warp();

// How many threads of the CTA say so.
int count(bool x);
int count_for_any(bool x);

// What thread `from` of the warp brings along.
long long shuffled_bits(long long bits, int from);

template <typename T>
T shuffled(unsigned lanes, T value, int from) {
  if (lanes != ~0u) std::abort();
  long long bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = shuffled_bits(bits, from);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

unsigned ballot(unsigned lanes, bool x);

}  // namespace host

inline void __syncthreads() { host::meet(); }
inline void __syncwarp() { host::meet_warp(); }

inline int __syncthreads_count(bool x) { return host::count(x); }

inline int __syncthreads_or(bool x) { return host::count_for_any(x) > 0; }

inline unsigned __ballot_sync(unsigned lanes, bool x) { return host::ballot(lanes, x); }
inline int __any_sync(unsigned lanes, bool x) { return host::ballot(lanes, x) != 0; }
inline int __all_sync(unsigned lanes, bool x) { return host::ballot(lanes, x) == ~0u; }

template <typename T>
T __shfl_sync(unsigned lanes, T x, int from, int width = 32) {
  const int lane = threadIdx.x % 32;
  return host::shuffled(lanes, x, lane / width * width + from % width);
}

template <typename T>
T __shfl_xor_sync(unsigned lanes, T x, int with) {
  return host::shuffled(lanes, x, (threadIdx.x % 32) ^ with);
}

template <typename T>
T __shfl_up_sync(unsigned lanes, T x, int by) {
  const int lane = threadIdx.x % 32;
  return host::shuffled(lanes, x, lane < by ? lane : lane - by);
}

inline float __int_as_float(int bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

inline unsigned __float_as_uint(float x) {
  unsigned bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}

inline float __uint_as_float(unsigned bits) { return __int_as_float(static_cast<int>(bits)); }

inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }

// CTAs may run at once.
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }

template <typename T>
T atomicAdd(T* to, T x) {
  return __atomic_fetch_add(to, x, __ATOMIC_SEQ_CST);
}
template <typename T>
T atomicOr(T* to, T x) {
  return __atomic_fetch_or(to, x, __ATOMIC_SEQ_CST);
}
inline int atomicMin(int* to, int x) {
  int old = __atomic_load_n(to, __ATOMIC_SEQ_CST);
  while (x < old && !__atomic_compare_exchange_n(to, &old, x, true, 5, 5)) {
  }
  return old;
}

#include "types.cuh"

namespace stof::ptx {

inline float to_float(bf16 x) {
  const u32 bits = static_cast<u32>(x.bits) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

float to_float(f16 x);

template <typename T>
T from_float(float x);
template <>
bf16 from_float<bf16>(float x);
template <>
f16 from_float<f16>(float x);

template <typename T>
u32 pack(float lo, float hi) {
  return from_float<T>(lo).bits | static_cast<u32>(from_float<T>(hi).bits) << 16;
}

inline float multiply(float x, float y) { return x * y; }
inline float exp2(float x) { return std::exp2(x); }
inline float log2(float x) { return std::log2(x); }
inline float reciprocal(float x) { return 1 / x; }
inline float or_zero(float x) { return x < 0 ? 0 : x; }
inline float sine(float x) { return std::sin(x); }
inline float cosine(float x) { return std::cos(x); }

}  // namespace stof::ptx

namespace host {

// `to_float` of the lower half of `bits`, quickly.
template <typename T>
float number(unsigned bits);

}  // namespace host
