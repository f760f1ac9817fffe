// The one-instruction functions of cuda/ptx/ on the CPU, for kernels compiled by on_host.py. What a
// warp does together, its threads meet for. An asynchronous copy is made when it is waited for and
// not before, so that a missing wait shows.
#pragma once

#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <deque>
#include <thread>

#include "on_host.hpp"

namespace host {

// Of the CTA that a thread of the CPU runs.
thread_local char* shared;
thread_local std::size_t shared_size;
struct Copy {
  unsigned to;
  const char* from;
  int bytes, size;
};
thread_local std::vector<std::deque<std::vector<Copy>>> copies;  // in groups; the last is open

using Registers = std::array<unsigned, 6>;
struct Exchange {
  Barrier barrier{32};
  std::array<Registers, 32> given[2];
};
thread_local std::vector<Exchange> exchanges;
thread_local std::vector<bool> waited;     // whether a thread has, for the kernels before
inline std::atomic<long long> multiplied;  // products of tensor cores that warps have made

inline void start_copies(int threads) {
  copies.assign(threads, {{}});
  waited.assign(threads, false);
  exchanges.assign(threads / 32, {});
}

// Whether anything is on its way, unawaited.
inline bool copying() {
  for (const auto& groups : copies)
    for (const auto& group : groups)
      if (!group.empty()) return true;
  return false;
}

inline char* at(unsigned address, std::size_t size) {
  if (address % size || address + size > shared_size) std::abort();
  return shared + address;
}

// The registers of all 32 lanes of the warp, until they meet again twice.
inline const std::array<Registers, 32>& exchange(const Registers& mine) {
  Exchange& with = exchanges[threadIdx.x / 32];
  std::array<Registers, 32>& given = with.given[with.barrier.round % 2];
  given[threadIdx.x % 32] = mine;
  wait_at(with.barrier);
  return given;
}

}  // namespace host

namespace stof::ptx {

inline void after_earlier_kernels() { host::waited[threadIdx.x] = true; }

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

inline void copy(u32 to, const void* from, int bytes, int size) {
  if (reinterpret_cast<std::uintptr_t>(from) % size) std::abort();
  host::at(to, size);
  host::copies[threadIdx.x].back().push_back({to, static_cast<const char*>(from), bytes, size});
}
inline void cp_async_16(u32 to, const void* from, int bytes) { copy(to, from, bytes, 16); }
inline void cp_async_16(u32 to, const void* from) { copy(to, from, 16, 16); }
inline void cp_async_commit() { host::copies[threadIdx.x].emplace_back(); }
template <int kPending>
void cp_async_wait() {
  auto& groups = host::copies[threadIdx.x];
  while (groups.size() > kPending + 1) {
    for (const host::Copy& each : groups.front()) {
      char* to = host::at(each.to, each.size);
      std::memset(to, 0, each.size);
      std::memcpy(to, each.from, each.bytes);
    }
    groups.pop_front();
  }
}

inline void matrices(u32 (&r)[4], u32 address, bool transposed) {
  const auto& lanes = host::exchange({address});
  const int lane = threadIdx.x % 32;
  for (int i = 0; i < 4; ++i) {
    u16 pair[2];
    for (int e = 0; e < 2; ++e) {
      const int row = transposed ? lane % 4 * 2 + e : lane / 4;
      const int col = transposed ? lane / 4 : lane % 4 * 2 + e;
      std::memcpy(&pair[e], host::at(lanes[8 * i + row][0], 16) + 2 * col, 2);
    }
    r[i] = pair[0] | static_cast<u32>(pair[1]) << 16;
  }
}
inline void ldmatrix_x4(u32 (&r)[4], u32 address) { matrices(r, address, false); }
inline void ldmatrix_x4_trans(u32 (&r)[4], u32 address) { matrices(r, address, true); }

template <typename T>
void mma_m16n8k16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  const auto& lanes = host::exchange({a[0], a[1], a[2], a[3], b0, b1});
  if (threadIdx.x % 32 == 0) ++host::multiplied;
  const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
  for (int e = 0; e < 4; ++e) {
    double sum = 0;
    for (int k = 0; k < 16; ++k) {
      const int shift = k % 2 * 16, lane = k % 8 / 2;
      const u32 x = lanes[g * 4 + lane][k / 8 * 2 + e / 2] >> shift;
      const u32 y = lanes[(2 * q + e % 2) * 4 + lane][4 + k / 8] >> shift;
      sum += static_cast<double>(host::number<T>(x)) * host::number<T>(y);
    }
    d[e] += sum;
  }
}

}  // namespace stof::ptx
