// What a kernel of cuda/ needs of CUDA, on the CPU: the threads of a CTA are coroutines of one
// thread, which change places where they wait for each other. Compiled by tests/masks/on_host.py.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#define __device__
#define __forceinline__ inline

struct Index {
  unsigned x, y, z;
};
thread_local Index threadIdx, blockIdx, gridDim;
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
inline float2 make_float2(float x, float y) { return {x, y}; }

namespace host {

// Where `members` threads meet. What they bring along is there until they meet again twice: in
// between, all of them have left.
struct Barrier {
  explicit Barrier(unsigned members) : values{Values(members), Values(members)} {}

  using Values = std::vector<long long>;
  Values values[2];
  unsigned arrived = 0, round = 0;
};

struct Warp {
  Barrier shuffled{32}, voted{32}, met{32};
};

constexpr size_t kStack = 64 << 10;

struct Thread {
  ucontext_t start;
  jmp_buf resume;
  std::unique_ptr<char[]> stack{new char[kStack]};  // not cleared: little of it is ever touched
  bool started = false, done = false;
  const unsigned* watched = nullptr;  // what it waited for a change of at last, and its value then
  unsigned seen = 0;
  bool waits() const { return done || (watched && *watched == seen); }
};

struct Cta {
  explicit Cta(unsigned count) : threads(count), warps(count / 32) {}
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  Barrier all{unsigned(threads.size())}, counted = all, any = all;
  jmp_buf scheduler;
};
thread_local Cta* cta;
void (*body)();
// Does one of the things that happen beside the threads, such as the landing of a copy; false if
// there is none.
bool (*beside)() = nullptr;

inline Warp& warp() { return cta->warps[threadIdx.x / 32]; }

inline void wait_for_change(const unsigned& of) {
  Thread& me = cta->threads[threadIdx.x];
  me.watched = &of;
  me.seen = of;
  if (!_setjmp(me.resume)) _longjmp(cta->scheduler, 1);
}

inline void wait_at(Barrier& barrier) {
  if (++barrier.arrived < barrier.values[0].size()) return wait_for_change(barrier.round);
  barrier.arrived = 0;
  ++barrier.round;
}

// What all who meet there bring along, in order.
inline const Barrier::Values& gathered(Barrier& barrier, long long value) {
  Barrier::Values& values = barrier.values[barrier.round % 2];
  values[threadIdx.x % values.size()] = value;
  wait_at(barrier);
  return values;
}

template <typename T>
T shuffled(unsigned lanes, T value, int from) {
  if (lanes != ~0u) std::abort();
  long long bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = gathered(warp().shuffled, bits)[from];
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline unsigned ballot(unsigned lanes, bool x) {
  if (lanes != ~0u) std::abort();
  const Barrier::Values& votes = gathered(warp().voted, x);
  unsigned bits = 0;
  for (int lane = 0; lane < 32; ++lane) bits |= unsigned(votes[lane]) << lane;
  return bits;
}

inline void start() {
  body();
  cta->threads[threadIdx.x].done = true;
  _longjmp(cta->scheduler, 1);
}

// Runs a thread until it waits. `setcontext` takes long and is for the first time alone.
inline void resume(Thread& thread) {
  if (_setjmp(cta->scheduler)) return;
  if (thread.started) _longjmp(thread.resume, 1);
  thread.started = true;
  getcontext(&thread.start);
  thread.start.uc_stack.ss_sp = thread.stack.get();
  thread.start.uc_stack.ss_size = kStack;
  makecontext(&thread.start, start, 0);
  setcontext(&thread.start);
}

// Runs one CTA; false if its threads wait for each other forever. Now and then a warp, or everyone,
// gets a turn: of what no barrier puts in order, all orders occur, a warp far ahead among them.
inline bool run_cta(std::mt19937& random) {
  std::vector<unsigned> order(cta->threads.size());
  std::iota(order.begin(), order.end(), 0);
  for (Thread& thread : cta->threads) {
    thread.started = thread.done = false;
    thread.watched = nullptr;
  }
  const auto waits = [](const Thread& thread) { return thread.waits(); };
  size_t done = 0;
  const auto turn = [&](unsigned first, unsigned last) {
    std::shuffle(order.begin() + first, order.begin() + last, random);
    for (unsigned i = first; i < last; ++i) {
      Thread& thread = cta->threads[order[i]];
      if (thread.waits()) continue;
      threadIdx = {order[i], 0, 0};
      resume(thread);
      done += thread.done;
    }
  };
  while (done < order.size()) {
    const auto begin = cta->threads.begin();
    if (std::all_of(begin, cta->threads.end(), waits)) {
      if (!beside || !beside()) return false;
      continue;
    }
    if (beside && random() % 4 == 0) beside();
    if (random() % 2) {
      turn(0, order.size());
    } else {
      const unsigned first = random() % cta->warps.size() * 32;
      std::iota(order.begin(), order.end(), 0);
      while (!std::all_of(begin + first, begin + first + 32, waits)) turn(first, first + 32);
    }
  }
  return true;
}

}  // namespace host

inline void __syncthreads() { host::wait_at(host::cta->all); }
inline void __syncwarp() { host::wait_at(host::warp().met); }

inline int __syncthreads_count(bool x) {
  const auto& values = host::gathered(host::cta->counted, x);
  return std::count(values.begin(), values.end(), 1);
}

inline int __syncthreads_or(bool x) {
  const auto& values = host::gathered(host::cta->any, x);
  return std::count(values.begin(), values.end(), 1) > 0;
}

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

inline float to_float(f16 x) {
  const int exponent = x.bits >> 10 & 31, fraction = x.bits & 1023;
  const float size = exponent == 31 ? (fraction ? NAN : INFINITY)
                     : exponent     ? std::ldexp(1024.f + fraction, exponent - 25)
                                    : std::ldexp(1.f * fraction, -24);
  return x.bits >> 15 ? -size : size;
}

template <typename T>
T from_float(float x);

template <>
inline bf16 from_float<bf16>(float x) {
  u32 bits;
  std::memcpy(&bits, &x, 4);
  if (std::isnan(x)) return {0x7fff};
  return {static_cast<u16>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

template <>
inline f16 from_float<f16>(float x) {
  const u32 sign = std::signbit(x) ? 0x8000 : 0;
  const float size = std::fabs(x);
  if (std::isnan(x)) return {0x7fff};
  if (size >= 65520.f) return {static_cast<u16>(sign | 0x7c00)};
  const int exponent = size < 0x1p-14f ? -14 : std::ilogb(size);
  const u32 steps = static_cast<u32>(std::nearbyint(std::ldexp(size, 10 - exponent)));
  return {static_cast<u16>(sign | ((exponent + 14) * 1024 + steps))};
}

template <typename T>
u32 pack(float lo, float hi) {
  return from_float<T>(lo).bits | static_cast<u32>(from_float<T>(hi).bits) << 16;
}

inline float multiply(float x, float y) { return x * y; }
inline float exp2(float x) { return std::exp2(x); }
inline float log2(float x) { return std::log2(x); }
inline float reciprocal(float x) { return 1 / x; }
inline float sine(float x) { return std::sin(x); }
inline float cosine(float x) { return std::cos(x); }

}  // namespace stof::ptx

namespace host {

// `to_float` of the lower half of `bits`, quickly.
template <typename T>
float number(unsigned bits) {
  static const std::vector<float> table = [] {
    std::vector<float> all(65536);
    for (unsigned i = 0; i < 65536; ++i) all[i] = stof::ptx::to_float(T{static_cast<stof::u16>(i)});
    return all;
  }();
  return table[bits & 0xffff];
}

}  // namespace host
