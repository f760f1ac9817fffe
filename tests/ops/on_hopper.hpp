// The instructions of cuda/ptx/ that kernels of sm_90a are made of, on the CPU; the rest of CUDA is
// in tests/masks/on_host.hpp, what is compiled once in on_hopper.cpp. Compiled by
// tests/ops/on_hopper.py.
//
// The threads of a cluster are numbered through here, CTA after CTA, and run as those of one CTA;
// the kernel is told its own numbers (thread_of_cta, block_of_cta).
//
// What is asynchronous on the GPU happens late here, to show who does not wait for it: a copy into
// shared memory lands at a random time, a product reads its operands when somebody waits for it,
// and so does a store. What a thread wrote itself and did not fence, none of them may touch.
#pragma once

#include <cassert>

#include "on_host.hpp"

namespace host {

extern char* shared;                 // where shared memory of the cluster is
constexpr unsigned kShared = 0x400;  // and its address in each CTA
constexpr unsigned kSwizzleAtom = 1024;
constexpr unsigned kEach = 1 << 18;   // bytes of each CTA
constexpr unsigned kOfCta = 1 << 20;  // an address of CTA r of the cluster has r + 1 times this

extern unsigned cta_threads, cta_count;  // of the cluster
extern unsigned elected;                 // the lane that elect_one() chooses
inline unsigned rank() { return threadIdx.x / cta_threads; }
inline Index thread_of_cta() { return {threadIdx.x % cta_threads, 0, 0}; }
inline Index block_of_cta() { return {blockIdx.x + rank(), 0, 0}; }

inline unsigned address_in(unsigned cta, unsigned address) {
  assert(address < kOfCta && cta < cta_count);
  return address + (cta + 1) * kOfCta;
}
inline unsigned absolute(unsigned address) {
  return address < kOfCta ? address_in(rank(), address) : address;
}
inline char* at(unsigned address) {
  const unsigned full = absolute(address), in_cta = full % kOfCta - kShared;
  assert(in_cta < kEach);
  return shared + (full / kOfCta - 1) * kEach + in_cta;
}

// Where the 16-byte chunks of 128-byte rows really are.
inline unsigned swizzled(unsigned address) { return address ^ (address >> 7 & 7) << 4; }

template <typename X>
X read(unsigned address) {
  X x;
  std::memcpy(&x, at(address), sizeof x);
  return x;
}

// Threads' own writes are seen by copies and products once the thread has fenced them.
void written(unsigned address, unsigned bytes);
void fence();

template <typename X>
void write(unsigned address, X x) {
  std::memcpy(at(address), &x, sizeof x);
  written(absolute(address), sizeof x);
}

// ---------------------------------------------------------------- warps

template <typename X>
X from_lane(X x, int lane) {
  return shuffled(~0u, x, lane);
}

// Arrive at a barrier of so many threads of a CTA, and wait there or not.
void reach(int id, int members, bool wait);

void wait_for_kernels();

// ---------------------------------------------------------------- what happens late

// Commit what a thread has begun, and wait until all but so many groups of it are done.
void commit_products();
void commit_stores();
void wait_for_products(unsigned pending);
void wait_for_stores(unsigned pending);

// Products of 64 rows by 2 * `count` columns, of which a thread has `count` sums.
template <typename T>
void multiply(float* to, int count, unsigned long long a, unsigned long long b, bool transposed_a,
              bool transposed_b, bool accumulate);
template <typename T>
void multiply(float* to, int count, const unsigned* a, unsigned long long b);

struct Kernel {
  void (*run)(char* smem);  // of one thread, on its CTA's shared memory
  unsigned threads, ctas;   // of a CTA and of a cluster
};

// Runs CTAs, cluster after cluster. 0 for a good end, 1 for threads that wait forever, 2 for copies
// that nobody waited for, 3 for copies or products of what was not fenced.
int launch(const Kernel& kernel, unsigned grid, unsigned seed);

}  // namespace host

inline void __threadfence_system() {}
inline void __threadfence() {}
inline long long clock64() { return 0; }

struct float4 {
  float x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline float4 __ldcg(const float4* from) { return *from; }

namespace stof::ptx {

struct alignas(64) TensorMap {
  u8 opaque[128];
};

enum class L2 : u64 { kNormal, kOnce, kAgain };

void mbarrier_init(u32 barrier, u32 arrivals);
inline void mbarrier_init_fence() {}
void mbarrier_arrive(u32 barrier);
inline void mbarrier_arrive_at(u32 barrier, u32 cta) {
  mbarrier_arrive(host::address_in(cta, barrier));
}
void mbarrier_arrive_expect(u32 barrier, u32 bytes);
bool mbarrier_try_wait(u32 barrier, u32 parity);
bool mbarrier_test(u32 barrier, u32 parity);

inline void prefetch(const TensorMap&) {}
inline void after_earlier_kernels() { host::wait_for_kernels(); }
inline void let_next_kernel_come() {}
void prefetch_l2(const TensorMap& map, int c0, int c1, int c2, int c3);  // and loads it then
// Faults where nothing is, which the hardware does not.
inline void prefetch_l2(const void* at) { (void)*static_cast<const volatile char*>(at); }
inline u32 cluster_rank() { return host::rank(); }
void store_async(u32 to, u32 barrier, u32 cta, float x, float y);
inline void store_cluster(u32 to, u32 cta, const float* x) {
  assert(to % 16 == 0);
  for (int i = 0; i < 4; ++i) host::write(host::address_in(cta, to) + 4 * i, x[i]);
}
inline void cluster_sync() { host::meet(); }

// The chunks of a box are swizzled by their place in a CTA's shared memory.
void tma_load_to(u32 cta, u32 to, const TensorMap& map, u32 barrier, int c0, int c1, int c2,
                 int c3);
inline void tma_load(u32 to, const TensorMap& map, u32 barrier, int c0, int c1, int c2, int c3,
                     L2) {
  tma_load_to(host::rank(), to, map, barrier, c0, c1, c2, c3);
}
void tma_load_multicast(u32 to, const TensorMap& map, u32 barrier, int c0, int c1, int c2, int c3,
                        L2, u16 ctas);
void bulk_load(u32 to, const void* from, u32 bytes, u32 barrier);
void tma_store(const TensorMap& map, u32 from, int c0, int c1, int c2, int c3);
inline void bulk_commit() { host::commit_stores(); }
template <int kPending = 0>
void bulk_wait_read() {
  host::wait_for_stores(kPending);
}

template <typename X>
X opaque(X x) {
  return x;
}
inline bool elect_one() {
  host::meet_warp();
  return threadIdx.x % 32 == host::elected;
}
inline void barrier_sync(int id, int threads) { host::reach(id, threads, true); }
inline void barrier_arrive(int id, int threads) { host::reach(id, threads, false); }
inline void fence_async_proxy() { host::fence(); }
template <int>
void take_registers() {}
template <int>
void give_registers() {}
inline void fault() { assert(false); }

inline u32 shared_address(const void* p) {
  const char* mine = host::shared + host::rank() * host::kEach;
  return static_cast<u32>(static_cast<const char*>(p) - mine) + host::kShared;
}
inline u32 load_shared_4(u32 address) { return host::read<u32>(address); }
inline uint2 load_shared_8(u32 address) {
  assert(address % 8 == 0);
  return host::read<uint2>(address);
}
inline uint4 load_shared_16(u32 address) {
  assert(address % 16 == 0);
  return host::read<uint4>(address);
}
inline void store_shared_2(u32 address, u16 x) { host::write(address, x); }
inline void store_shared_4(u32 address, u32 x) {
  assert(address % 4 == 0);
  host::write(address, x);
}
inline void store_shared_16(u32 address, uint4 x) {
  assert(address % 16 == 0);
  host::write(address, x);
}

// Lane 8 * i + r has the address of row r of matrix i; each lane's register i holds two elements of
// row lane / 4 of matrix i.
void stmatrix_x4(u32 address, u32 r0, u32 r1, u32 r2, u32 r3);
void ldmatrix_x4(u32 (&r)[4], u32 address);  // the reverse

template <typename T>
void mma_m16n8k16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1);

template <typename T>
u32 add_zero_times(u32 x, u32 y) {
  const auto half = [](u16 a, u16 b) {
    return from_float<T>(host::number<T>(a) * 0.f + host::number<T>(b)).bits;
  };
  return half(x, y) | static_cast<u32>(half(x >> 16, y >> 16)) << 16;
}

template <typename T, int kN>
struct Wgmma {
  static void qk(float (&d)[kN / 2], u64 a, u64 b, bool accumulate) {
    host::multiply<T>(d, kN / 2, a, b, false, false, accumulate);
  }
  template <int kTransposedA, int kTransposedB>
  static void product(float (&d)[kN / 2], u64 a, u64 b) {
    host::multiply<T>(d, kN / 2, a, b, kTransposedA, kTransposedB, true);
  }
  template <int kTransposedA, int kTransposedB>
  static void first(float (&d)[kN / 2], u64 a, u64 b) {
    host::multiply<T>(d, kN / 2, a, b, kTransposedA, kTransposedB, false);
  }
  static void pv(float (&d)[kN / 2], const u32* a, u64 b) { host::multiply<T>(d, kN / 2, a, b); }
};

inline void wgmma_fence() {}
inline void wgmma_commit() { host::commit_products(); }
template <int kPending>
void wgmma_wait() {
  host::wait_for_products(kPending);
}
template <int kN>
void pin(float (&)[kN]) {}

}  // namespace stof::ptx
