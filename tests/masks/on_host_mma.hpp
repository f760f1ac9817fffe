// What the lanes of a warp bring along for each other, and mma.sync made of it, for the files that
// kernels on the CPU share.
#pragma once

#include <array>
#include <atomic>
#include <vector>

#include "on_host_cta.hpp"

namespace host {

using Registers = std::array<unsigned, 6>;
struct Exchange {
  Barrier barrier{32};
  std::array<Registers, 32> given[2];
  // What the last product is of, as numbers: 16 and 8 times 16 that are summed over.
  double left[16][16], right[8][16];
  unsigned multiplied = 0;  // the round of it
};
static thread_local std::vector<Exchange> exchanges;
static std::atomic<long long> multiplied;  // products of tensor cores that warps have made

// The registers of all 32 lanes of the warp, until they meet again twice.
static const std::array<Registers, 32>& exchange(const Registers& mine) {
  Exchange& with = exchanges[threadIdx.x / 32];
  std::array<Registers, 32>& given = with.given[with.barrier.round % 2];
  given[threadIdx.x % 32] = mine;
  wait_at(with.barrier);
  return given;
}

}  // namespace host

namespace stof::ptx {

template <typename T>
void mma_m16n8k16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  const auto& lanes = host::exchange({a[0], a[1], a[2], a[3], b0, b1});
  host::Exchange& with = host::exchanges[threadIdx.x / 32];
  if (with.multiplied != with.barrier.round) {  // the first of the warp; for all of them
    with.multiplied = with.barrier.round;
    ++host::multiplied;
    for (int n = 0; n < 8; ++n)
      for (int k = 0; k < 16; ++k) {
        const int shift = k % 2 * 16;
        const auto& lane = lanes[n * 4 + k % 8 / 2];
        with.left[n][k] = host::number<T>(lane[k / 8 * 2] >> shift);
        with.left[n + 8][k] = host::number<T>(lane[k / 8 * 2 + 1] >> shift);
        with.right[n][k] = host::number<T>(lane[4 + k / 8] >> shift);
      }
  }
  const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
  for (int e = 0; e < 4; ++e) {
    const auto& x = with.left[g + e / 2 * 8];
    const auto& y = with.right[2 * q + e % 2];
    double sum = 0;
    for (int k = 0; k < 16; ++k) sum += x[k] * y[k];
    d[e] += sum;
  }
}

template void mma_m16n8k16<f16>(float (&)[4], const u32 (&)[4], u32, u32);
template void mma_m16n8k16<bf16>(float (&)[4], const u32 (&)[4], u32, u32);

}  // namespace stof::ptx
