// The one-instruction functions of cuda/ptx/ on the CPU, for kernels compiled by on_host.py. What a
// warp does together, its threads meet for. An asynchronous copy is made when it is waited for and
// not before, so that a missing wait shows.
#pragma once

#include <cstdint>

#include "on_host.hpp"

namespace host {

// Of the CTA that a thread of the CPU runs.
extern __thread char* shared;
extern __thread std::size_t shared_size;

struct Kernel {
  void (*run)();  // on `shared`
  unsigned threads, smem;
  bool waits;  // for the kernels before
};

// Runs x * y CTAs in an order that `seed` decides, `at_once` at a time, each by a thread of the
// CPU; returns the products of tensor cores that warps have made, -1 if threads wait forever.
long long launch(const Kernel& kernel, unsigned x, unsigned y, unsigned seed, unsigned at_once);

void start_copy(unsigned to, const void* from, int bytes, int size);
void commit_copies();
void wait_for_copies(unsigned pending);
void wait_for_kernels();

inline char* at(unsigned address, std::size_t size) {
  if (address % size || address + size > shared_size) std::abort();
  return shared + address;
}

}  // namespace host

namespace stof::ptx {

inline void after_earlier_kernels() { host::wait_for_kernels(); }
inline void let_next_kernel_come() {}

// Of no cluster; those are in on_hopper.hpp.
inline u32 cluster_rank() { return 0; }
inline void cluster_sync() { host::meet(); }
inline void store_cluster(u32 to, u32 cta, const float* x) {
  if (cta > 0) std::abort();
  std::memcpy(host::at(to, 16), x, 16);
}

inline u32 opaque(u32 x) { return x; }
inline int opaque(int x) { return x; }
inline i64 opaque(i64 x) { return x; }
template <typename T>
inline T* opaque(T* x) {
  return x;
}

inline u32 shared_address(const void* p) {
  return static_cast<u32>(static_cast<const char*>(p) - host::shared);
}
inline u32 load_shared_4(u32 address) {
  u32 x;
  std::memcpy(&x, host::at(address, 4), 4);
  return x;
}
inline float load_shared_f32(u32 address) {
  float r;
  std::memcpy(&r, host::at(address, 4), 4);
  return r;
}
inline uint2 load_shared_8(u32 address) {
  uint2 x;
  std::memcpy(&x, host::at(address, 8), 8);
  return x;
}
inline uint4 load_shared_16(u32 address) {
  uint4 x;
  std::memcpy(&x, host::at(address, 16), 16);
  return x;
}
inline void store_shared_4(u32 address, u32 x) { std::memcpy(host::at(address, 4), &x, 4); }
inline void store_shared_f32(u32 address, float x) { std::memcpy(host::at(address, 4), &x, 4); }
inline void store_shared_16(u32 address, uint4 x) { std::memcpy(host::at(address, 16), &x, 16); }

inline void cp_async_16(u32 to, const void* from, int bytes) {
  host::start_copy(to, from, bytes, 16);
}
inline void cp_async_16(u32 to, const void* from) { host::start_copy(to, from, 16, 16); }
inline void cp_async_commit() { host::commit_copies(); }
template <int kPending>
void cp_async_wait() {
  host::wait_for_copies(kPending);
}

void matrices(u32 (&r)[4], u32 address, bool transposed);
inline void ldmatrix_x4(u32 (&r)[4], u32 address) { matrices(r, address, false); }
inline void ldmatrix_x4_trans(u32 (&r)[4], u32 address) { matrices(r, address, true); }

template <typename X>
X load_l2(const void* from) {
  if (reinterpret_cast<std::uintptr_t>(from) % sizeof(X)) std::abort();
  X x;
  std::memcpy(&x, from, sizeof x);
  return x;
}
inline int load_l2_4(const void* from) { return load_l2<int>(from); }
inline uint2 load_l2_8(const void* from) { return load_l2<uint2>(from); }
inline uint4 load_l2_16(const void* from) { return load_l2<uint4>(from); }
// Faults where nothing is, which the hardware does not.
inline void prefetch_l2(const void* at) { (void)*static_cast<const volatile char*>(at); }
inline int arrive(int* counter) { return atomicAdd(counter, 1); }

// Row `lane / 4` of the transposed matrix is a column of the one that the warp has.
inline u32 transposed(u32 x) {
  const int lane = threadIdx.x % 32, column = lane / 4, row = lane % 4 * 2;
  const u32 low = host::shuffled(~0u, x, row * 4 + column / 2);
  const u32 high = host::shuffled(~0u, x, (row + 1) * 4 + column / 2);
  return (low >> column % 2 * 16 & 0xffff) | high >> column % 2 * 16 << 16;
}

template <typename T>
void mma_m16n8k16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1);

}  // namespace stof::ptx
