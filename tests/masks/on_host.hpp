// What a kernel of cuda/ needs of CUDA, on the CPU: the threads of a CTA are coroutines of one
// thread, which change places where they wait for each other. Compiled by tests/masks/on_host.py.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#define __device__
#define __forceinline__ inline

struct Index {
  unsigned x, y, z;
};
Index threadIdx, blockIdx;
using std::max;
using std::min;

namespace host {

struct Thread {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(64 << 10);
  bool done = false;
};

struct Barrier {
  int arrived = 0;
  unsigned round = 0;
};

std::vector<Thread> threads;
ucontext_t scheduler;
void (*body)();
long progress;  // barriers passed and threads ended: none in a whole turn is a deadlock
std::vector<long long> values;
Barrier all, counted, any;
std::vector<Barrier> shuffled, voted;

inline void wait_for(Barrier& barrier, int members) {
  const unsigned round = barrier.round;
  if (++barrier.arrived == members) {
    barrier.arrived = 0;
    ++barrier.round;
    ++progress;
    return;
  }
  const unsigned me = threadIdx.x;
  while (barrier.round == round) swapcontext(&threads[me].context, &scheduler);
}

// Sum over `members` threads of what `term` makes of each one's value.
template <typename Term>
long long gathered(Barrier& barrier, int members, long long value, Term term) {
  values[threadIdx.x] = value;
  wait_for(barrier, members);
  const unsigned first = threadIdx.x / members * members;
  long long sum = 0;
  for (int i = 0; i < members; ++i) sum += term(i, values[first + i]);
  wait_for(barrier, members);
  return sum;
}

inline void start() {
  const unsigned me = threadIdx.x;
  body();
  threads[me].done = true;
  ++progress;
  swapcontext(&threads[me].context, &scheduler);
}

// Runs one CTA; false if its threads wait for each other forever.
inline bool run_cta(int count, std::mt19937& random) {
  threads.resize(count);
  values.assign(count, 0);
  all = counted = any = Barrier();
  shuffled.assign(count / 32, Barrier());
  voted.assign(count / 32, Barrier());
  std::vector<unsigned> order(count);
  for (int i = 0; i < count; ++i) {
    Thread& thread = threads[order[i] = i];
    thread.done = false;
    getcontext(&thread.context);
    thread.context.uc_stack.ss_sp = thread.stack.data();
    thread.context.uc_stack.ss_size = thread.stack.size();
    makecontext(&thread.context, start, 0);
  }
  for (int done = 0; done < count;) {
    std::shuffle(order.begin(), order.end(), random);
    const long before = progress;
    for (unsigned i : order) {
      if (threads[i].done) continue;
      threadIdx = {i, 0, 0};
      swapcontext(&scheduler, &threads[i].context);
      done += threads[i].done;
    }
    if (progress == before) return false;
  }
  return true;
}

}  // namespace host

inline void __syncthreads() { host::wait_for(host::all, host::threads.size()); }

inline int __syncthreads_count(bool x) {
  return host::gathered(host::counted, host::threads.size(), x, [](int, long long v) { return v; });
}

inline int __syncthreads_or(bool x) {
  return host::gathered(host::any, host::threads.size(), x, [](int, long long v) { return v; }) > 0;
}

inline bool __any_sync(unsigned, bool x) {
  return host::gathered(host::voted[threadIdx.x / 32], 32, x, [](int, long long v) { return v; });
}

inline void __syncwarp() { host::wait_for(host::voted[threadIdx.x / 32], 32); }

inline unsigned __ballot_sync(unsigned, bool x) {
  return host::gathered(host::voted[threadIdx.x / 32], 32, x,
                        [](int lane, long long v) { return v << lane; });
}

inline unsigned __shfl_up_sync(unsigned, unsigned x, int by) {
  const int from = threadIdx.x % 32 - by, lane = threadIdx.x % 32;
  return host::gathered(host::shuffled[threadIdx.x / 32], 32, x,
                        [&](int i, long long v) { return i == (from < 0 ? lane : from) ? v : 0; });
}

template <typename T>
T __shfl_xor_sync(unsigned, T x, int by) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  long long bits = 0;
  std::memcpy(&bits, &x, sizeof x);
  const int from = threadIdx.x % 32 ^ by;
  bits = host::gathered(host::shuffled[threadIdx.x / 32], 32, bits,
                        [&](int i, long long v) { return i == from ? v : 0; });
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

inline float __int_as_float(int x) {
  float value;
  std::memcpy(&value, &x, 4);
  return value;
}

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

inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline void atomicAdd(unsigned* to, unsigned x) { *to += x; }
inline void atomicMin(int* to, int x) { *to = min(*to, x); }

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

}  // namespace stof::ptx
