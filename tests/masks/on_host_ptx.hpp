// The one-instruction functions of cuda/ptx/ on the CPU, for kernels compiled by on_host.py. What a
// warp does together, its threads meet for. An asynchronous copy is made when it is waited for and
// not before, so that a missing wait shows.
#pragma once

#include <cstdint>
#include <deque>

#include "on_host.hpp"

namespace host {

char* shared;
std::size_t shared_size;
struct Copy {
  unsigned to;
  const char* from;
  int bytes, size;
};
std::vector<std::deque<std::vector<Copy>>> copies;  // of each thread, in groups; the last is open
std::vector<std::vector<unsigned>> given;           // registers of each thread, for its warp to see

inline void start_copies(int threads) {
  copies.assign(threads, {{}});
  given.assign(threads, {});
}

inline char* at(unsigned address, std::size_t size) {
  if (address % size || address + size > shared_size) std::abort();
  return shared + address;
}

// The registers of all 32 lanes of the warp.
inline const std::vector<unsigned>* exchange(std::vector<unsigned> mine) {
  const unsigned me = threadIdx.x;
  given[me] = std::move(mine);
  wait_for(voted[me / 32], 32);
  return &given[me / 32 * 32];
}
inline void release() { wait_for(voted[threadIdx.x / 32], 32); }

inline float half(unsigned bits, stof::f16) {
  return stof::ptx::to_float(stof::f16{static_cast<stof::u16>(bits)});
}
inline float half(unsigned bits, stof::bf16) {
  return stof::ptx::to_float(stof::bf16{static_cast<stof::u16>(bits)});
}

}  // namespace host

namespace stof::ptx {

inline u32 opaque(u32 x) { return x; }
inline int opaque(int x) { return x; }

inline float exp2(float x) { return std::exp2(x); }
inline float log2(float x) { return std::log2(x); }

template <typename T>
T from_float(float x);
template <>
inline bf16 from_float<bf16>(float x) {
  u32 bits;
  std::memcpy(&bits, &x, 4);
  if (x != x) return {0x7fff};
  return {static_cast<u16>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
template <>
inline f16 from_float<f16>(float x) {
  const u16 sign = std::signbit(x) ? 0x8000 : 0;
  if (x != x) return {0x7fff};
  const float size = std::fabs(x);
  if (size >= 65520.f) return {static_cast<u16>(sign | 0x7c00)};
  int exponent;
  std::frexp(size, &exponent);
  const int lowest = max(exponent - 11, -24);  // of the last bit
  const float units = std::nearbyint(std::ldexp(size, -lowest));
  if (units == 0.f) return {sign};
  // A carry into the exponent comes out right.
  const int whole = static_cast<int>(units);
  return {static_cast<u16>(sign | (exponent - 11 < -24 ? whole : ((exponent + 13) << 10) + whole))};
}

template <typename T>
u32 pack(float lo, float hi) {
  return from_float<T>(lo).bits | static_cast<u32>(from_float<T>(hi).bits) << 16;
}

inline u32 shared_address(const void* p) {
  return static_cast<u32>(static_cast<const char*>(p) - host::shared);
}
inline u32 load_shared_4(u32 address) {
  u32 x;
  std::memcpy(&x, host::at(address, 4), 4);
  return x;
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
inline void store_shared_16(u32 address, uint4 x) { std::memcpy(host::at(address, 16), &x, 16); }

inline void copy(u32 to, const void* from, int bytes, int size) {
  if (reinterpret_cast<std::uintptr_t>(from) % size) std::abort();
  host::at(to, size);
  host::copies[threadIdx.x].back().push_back({to, static_cast<const char*>(from), bytes, size});
}
inline void cp_async_16(u32 to, const void* from, int bytes) { copy(to, from, bytes, 16); }
inline void cp_async_16(u32 to, const void* from) { copy(to, from, 16, 16); }
inline void cp_async_4(u32 to, const void* from) { copy(to, from, 4, 4); }
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
  const auto* lanes = host::exchange({address});
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
  host::release();
}
inline void ldmatrix_x4(u32 (&r)[4], u32 address) { matrices(r, address, false); }
inline void ldmatrix_x4_trans(u32 (&r)[4], u32 address) { matrices(r, address, true); }

template <typename T>
void mma_m16n8k16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  const auto* lanes = host::exchange({a[0], a[1], a[2], a[3], b0, b1});
  const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
  for (int e = 0; e < 4; ++e) {
    double sum = 0;
    for (int k = 0; k < 16; ++k) {
      const int shift = k % 2 * 16, lane = k % 8 / 2;
      const u32 x = lanes[g * 4 + lane][k / 8 * 2 + e / 2] >> shift;
      const u32 y = lanes[(2 * q + e % 2) * 4 + lane][4 + k / 8] >> shift;
      sum += static_cast<double>(host::half(x, T{})) * host::half(y, T{});
    }
    d[e] += sum;
  }
  host::release();
}

}  // namespace stof::ptx
