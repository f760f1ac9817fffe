// What kernels on the CPU share that have the instructions of on_host_ptx.hpp, compiled once.
#include "on_host_ptx.hpp"

#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <deque>
#include <numeric>
#include <thread>

#include "on_host_cta.hpp"

namespace host {

__thread char* shared;
__thread std::size_t shared_size;

struct Copy {
  unsigned to;
  const char* from;
  int bytes, size;
};
static thread_local std::vector<std::deque<std::vector<Copy>>>
    copies;  // in groups; the last is open

using Registers = std::array<unsigned, 6>;
struct Exchange {
  Barrier barrier{32};
  std::array<Registers, 32> given[2];
  // What the last product is of, as numbers: 16 and 8 times 16 that are summed over.
  double left[16][16], right[8][16];
  unsigned multiplied = 0;  // the round of it
};
static thread_local std::vector<Exchange> exchanges;
static thread_local std::vector<bool> waited;  // whether a thread has, for the kernels before
static std::atomic<long long> multiplied;      // products of tensor cores that warps have made

static void start_copies(int threads) {
  copies.assign(threads, {{}});
  waited.assign(threads, false);
  exchanges.assign(threads / 32, {});
}

// Whether anything is on its way, unawaited.
static bool copying() {
  for (const auto& groups : copies)
    for (const auto& group : groups)
      if (!group.empty()) return true;
  return false;
}

// The registers of all 32 lanes of the warp, until they meet again twice.
static const std::array<Registers, 32>& exchange(const Registers& mine) {
  Exchange& with = exchanges[threadIdx.x / 32];
  std::array<Registers, 32>& given = with.given[with.barrier.round % 2];
  given[threadIdx.x % 32] = mine;
  wait_at(with.barrier);
  return given;
}

void start_copy(unsigned to, const void* from, int bytes, int size) {
  if (reinterpret_cast<std::uintptr_t>(from) % size) std::abort();
  at(to, size);
  copies[threadIdx.x].back().push_back({to, static_cast<const char*>(from), bytes, size});
}

void commit_copies() { copies[threadIdx.x].emplace_back(); }

void wait_for_copies(unsigned pending) {
  auto& groups = copies[threadIdx.x];
  while (groups.size() > pending + 1) {
    for (const Copy& each : groups.front()) {
      char* to = at(each.to, each.size);
      std::memset(to, 0, each.size);
      std::memcpy(to, each.from, each.bytes);
    }
    groups.pop_front();
  }
}

void wait_for_kernels() { waited[threadIdx.x] = true; }

long long launch(const Kernel& kernel, unsigned x, unsigned y, unsigned seed, unsigned at_once) {
  body = kernel.run;
  std::vector<unsigned> order(x * y);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(seed));
  std::atomic<unsigned> next(0);
  std::atomic<bool> ended(true);
  const auto work = [&](unsigned number) {
    std::mt19937 random(seed + number);
    Cta mine(kernel.threads);
    cta = &mine;
    std::vector<char> memory(kernel.smem + 1025);
    shared = memory.data() + (-reinterpret_cast<std::uintptr_t>(memory.data()) & 1023);
    shared_size = kernel.smem;
    for (unsigned i; ended && (i = next++) < order.size();) {
      gridDim = {x, y, 1};
      blockIdx = {order[i] % x, order[i] / x, 0};
      std::fill_n(shared, kernel.smem, static_cast<char>(0xff));  // NaN
      start_copies(kernel.threads);
      if (!run_cta(random)) ended = false;
      const long all = kernel.waits ? kernel.threads : 0;
      if (std::count(waited.begin(), waited.end(), true) != all) std::abort();
      if (copying()) std::abort();  // it may land on what shared memory is used for later
    }
  };
  // A kernel that polls memory for what never comes cannot be told to end.
  const auto before = std::signal(SIGALRM, [](int) { std::abort(); });
  alarm(60);
  std::vector<std::thread> others;
  for (unsigned number = 1; number < at_once; ++number) others.emplace_back(work, number);
  work(0);
  for (std::thread& other : others) other.join();
  alarm(0);
  std::signal(SIGALRM, before);
  return ended ? multiplied.exchange(0) : -1;
}

}  // namespace host

namespace stof::ptx {

void matrices(u32 (&r)[4], u32 address, bool transposed) {
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
