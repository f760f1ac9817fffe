// What kernels on the CPU share, compiled once.
#include "on_host.hpp"

#include <numeric>

#include "on_host_cta.hpp"

__thread Index threadIdx, blockIdx, gridDim;

namespace host {

__thread Cta* cta;
void (*body)();
bool (*beside)() = nullptr;

static Warp& warp() { return cta->warps[threadIdx.x / 32]; }

void wait_for_change(const unsigned& of) {
  Thread& me = cta->threads[threadIdx.x];
  me.watched = &of;
  me.seen = of;
  if (!_setjmp(me.resume)) _longjmp(cta->scheduler, 1);
}

void give_way() {
  Thread& me = cta->threads[threadIdx.x];
  me.watched = nullptr;
  if (!_setjmp(me.resume)) _longjmp(cta->scheduler, 1);
}

void wait_at(Barrier& barrier) {
  if (++barrier.arrived < barrier.values[0].size()) return wait_for_change(barrier.round);
  barrier.arrived = 0;
  ++barrier.round;
}

// What all who meet there bring along, in order.
static const Barrier::Values& gathered(Barrier& barrier, long long value) {
  Barrier::Values& values = barrier.values[barrier.round % 2];
  values[threadIdx.x % values.size()] = value;
  wait_at(barrier);
  return values;
}

void meet() { wait_at(cta->all); }
void meet_warp() { wait_at(warp().met); }

static int ones(const Barrier::Values& values) {
  return std::count(values.begin(), values.end(), 1);
}
int count(bool x) { return ones(gathered(cta->counted, x)); }
int count_for_any(bool x) { return ones(gathered(cta->any, x)); }

long long shuffled_bits(long long bits, int from) { return gathered(warp().shuffled, bits)[from]; }

unsigned ballot(unsigned lanes, bool x) {
  if (lanes != ~0u) std::abort();
  const Barrier::Values& votes = gathered(warp().voted, x);
  unsigned bits = 0;
  for (int lane = 0; lane < 32; ++lane) bits |= unsigned(votes[lane]) << lane;
  return bits;
}

// What an earlier kernel writes while it ends.
struct Written {
  char* at;
  const char *before, *after;
  std::size_t size;
};
static std::vector<Written> earlier;

void start_earlier() {
  for (const Written& each : earlier) std::memcpy(each.at, each.before, each.size);
}

void end_earlier() {
  if (earlier.empty()) return;
  meet();
  if (threadIdx.x == 0) {
    while (beside && beside()) continue;
    for (const Written& each : earlier) std::memcpy(each.at, each.after, each.size);
  }
  meet();
}

static void start() {
  body();
  cta->threads[threadIdx.x].done = true;
  _longjmp(cta->scheduler, 1);
}

// Runs a thread until it waits. `setcontext` takes long and is for the first time alone.
static void resume(Thread& thread) {
  if (_setjmp(cta->scheduler)) return;
  if (thread.started) _longjmp(thread.resume, 1);
  thread.started = true;
  getcontext(&thread.start);
  thread.start.uc_stack.ss_sp = thread.stack.get();
  thread.start.uc_stack.ss_size = kStack;
  makecontext(&thread.start, start, 0);
  setcontext(&thread.start);
}

bool run_cta(std::mt19937& random) {
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

// Says what is at `at` until a CTA has waited for earlier kernels, and then; without a size that
// there is no more of that.
extern "C" void earlier_writes(void* at, const void* before, const void* after, std::size_t size) {
  if (size == 0) return host::earlier.clear();
  const auto bytes = [](const void* x) { return static_cast<const char*>(x); };
  host::earlier.push_back({static_cast<char*>(at), bytes(before), bytes(after), size});
}

namespace stof::ptx {

float to_float(f16 x) {
  const int exponent = x.bits >> 10 & 31, fraction = x.bits & 1023;
  const float size = exponent == 31 ? (fraction ? NAN : INFINITY)
                     : exponent     ? std::ldexp(1024.f + fraction, exponent - 25)
                                    : std::ldexp(1.f * fraction, -24);
  return x.bits >> 15 ? -size : size;
}

template <>
bf16 from_float<bf16>(float x) {
  u32 bits;
  std::memcpy(&bits, &x, 4);
  if (std::isnan(x)) return {0x7fff};
  return {static_cast<u16>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

template <>
f16 from_float<f16>(float x) {
  const u32 sign = std::signbit(x) ? 0x8000 : 0;
  const float size = std::fabs(x);
  if (std::isnan(x)) return {0x7fff};
  if (size >= 65520.f) return {static_cast<u16>(sign | 0x7c00)};
  const int exponent = size < 0x1p-14f ? -14 : std::ilogb(size);
  const u32 steps = static_cast<u32>(std::nearbyint(std::ldexp(size, 10 - exponent)));
  return {static_cast<u16>(sign | ((exponent + 14) * 1024 + steps))};
}

}  // namespace stof::ptx

namespace host {

template <typename T>
float number(unsigned bits) {
  static const std::vector<float> table = [] {
    std::vector<float> all(65536);
    for (unsigned i = 0; i < 65536; ++i) all[i] = stof::ptx::to_float(T{static_cast<stof::u16>(i)});
    return all;
  }();
  return table[bits & 0xffff];
}

template float number<stof::f16>(unsigned);
template float number<stof::bf16>(unsigned);

}  // namespace host
