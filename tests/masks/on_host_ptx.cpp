// What kernels on the CPU share that have the instructions of on_host_ptx.hpp, compiled once.
#include "on_host_ptx.hpp"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <deque>
#include <numeric>
#include <thread>

#include "on_host_cta.hpp"
#include "on_host_mma.hpp"

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

static thread_local std::vector<bool> waited;  // whether a thread has, for the kernels before

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

void wait_for_kernels() {
  waited[threadIdx.x] = true;
  end_earlier();
}

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
      start_earlier();
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

}  // namespace stof::ptx
