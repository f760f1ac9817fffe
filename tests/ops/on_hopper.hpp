// The instructions of cuda/ptx/ that kernels of sm_90a are made of, on the CPU; the rest of CUDA is
// in tests/masks/on_host.hpp. Compiled by tests/ops/on_hopper.py.
//
// The threads of a cluster are numbered through here, CTA after CTA, and run as those of one CTA;
// the kernel is told its own numbers (thread_of_cta, block_of_cta).
//
// What is asynchronous on the GPU happens late here, to show who does not wait for it: a copy into
// shared memory lands at a random time, a product reads its operands when somebody waits for it,
// and so does a store.
#pragma once

#include <array>
#include <cassert>
#include <deque>
#include <functional>
#include <map>

#include "on_host.hpp"

namespace host {

std::mt19937 chance(1);
char* shared;                        // where shared memory of the cluster is
constexpr unsigned kShared = 0x400;  // and its address in each CTA
constexpr unsigned kSwizzleAtom = 1024;
constexpr unsigned kEach = 1 << 18;   // bytes of each CTA
constexpr unsigned kOfCta = 1 << 20;  // an address of CTA r of the cluster has r + 1 times this

unsigned cta_threads, cta_count;  // of the cluster
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

template <typename X>
void write(unsigned address, X x) {
  std::memcpy(at(address), &x, sizeof x);
}

// ---------------------------------------------------------------- warps

template <typename X>
X from_lane(X x, int lane) {
  return shuffled(~0u, x, lane);
}

struct Named {
  int arrived = 0;
  unsigned round = 0;
};
std::map<std::pair<unsigned, int>, Named> named;  // by CTA and number

inline void reach(int id, int members, bool wait) {
  Named& barrier = named[{rank(), id}];
  if (++barrier.arrived == members) {
    barrier.arrived = 0;
    ++barrier.round;
  } else if (wait) {
    wait_for_change(barrier.round);
  }
}

// ---------------------------------------------------------------- mbarriers and copies

struct MBarrier {
  int count = 0, pending = 0;
  long bytes = 0;
  unsigned phase = 0;

  void settle() {
    if (pending || bytes) return;
    ++phase;
    pending = count;
  }
};

std::map<unsigned, MBarrier> mbarriers;

struct Copy {
  std::function<void()> move;
  unsigned barrier;
  unsigned bytes;
};
std::vector<Copy> copies;

inline bool land_one() {
  if (copies.empty()) return false;
  const unsigned which = chance() % copies.size();
  const Copy copy = copies[which];
  copies.erase(copies.begin() + which);
  copy.move();
  MBarrier& barrier = mbarriers.at(copy.barrier);
  barrier.bytes -= copy.bytes;
  barrier.settle();
  return true;
}

// What the test writes into a TensorMap in the driver's place.
struct Map {
  char* data;
  long long strides[3];  // bytes
  unsigned dims[4], box[4];
  unsigned element;
};

// Calls visit(place in the box, pointer or null) for each element of a box.
template <typename Visit>
void walk(const Map& map, const int (&corner)[4], Visit visit) {
  assert(map.element == 2);
  unsigned count = 1;
  for (const unsigned side : map.box) count *= side;
  for (unsigned place = 0; place < count; ++place) {
    unsigned rest = place;
    long long c[4];
    bool inside = true;
    for (int i = 0; i < 4; rest /= map.box[i], ++i) {
      c[i] = corner[i] + static_cast<long long>(rest % map.box[i]);
      inside = inside && c[i] >= 0 && c[i] < map.dims[i];
    }
    char* element = map.data + 2 * c[0];
    for (int i = 0; i < 3; ++i) element += c[i + 1] * map.strides[i];
    visit(2 * place, inside ? element : nullptr);
  }
}

inline unsigned bytes(const Map& map) {
  return 2 * map.box[0] * map.box[1] * map.box[2] * map.box[3];
}

// ---------------------------------------------------------------- products and stores, done late

struct Late {
  std::vector<std::function<void()>> open;
  std::deque<std::vector<std::function<void()>>> groups;
  unsigned committed = 0;

  void commit() {
    groups.push_back(std::move(open));
    open.clear();
    ++committed;
  }
  unsigned done() const { return committed - static_cast<unsigned>(groups.size()); }
  void do_one() {
    for (auto& each : groups.front()) each();
    groups.pop_front();
  }
};
std::vector<Late> products(4096), stores(4096);

// A group of products is done for all threads of a warpgroup, or for none: the hardware lets no
// warp run ahead so far that its leader could release operands which others have yet to read.
inline void wait_for_products(unsigned pending) {
  const unsigned me = threadIdx.x, first = me / 128 * 128;
  const unsigned committed = products[me].committed;
  while (products[me].done() + pending < committed) {
    const unsigned group = products[me].done();
    for (unsigned i = first; i < first + 128; ++i)
      while (products[i].committed <= group) wait_for_change(products[i].committed);
    if (products[me].done() > group) continue;  // somebody else has done it meanwhile
    for (unsigned i = first; i < first + 128; ++i) {
      threadIdx.x = i;
      products[i].do_one();
    }
    threadIdx.x = me;
  }
}

struct Operand {
  unsigned start, leading, stride;

  explicit Operand(unsigned long long descriptor) {
    start = (descriptor & 0x3fff) << 4;
    leading = (descriptor >> 16 & 0x3fff) << 4;
    stride = (descriptor >> 32 & 0x3fff) << 4;
    assert(descriptor >> 62 == 1 && (descriptor >> 49 & 7) == 0);  // 128-byte swizzle, no offset
  }
  // Consecutive along the 16 that are summed over.
  unsigned k_major(int row, int k) const {
    return swizzled(start + row / 8 * stride + row % 8 * 128 + 2 * k);
  }
  unsigned n_major(int k, int n) const {
    return swizzled(start + n / 64 * leading + k / 8 * stride + k % 8 * 128 + n % 64 * 2);
  }
};

inline void reset() {
  named.clear();
  mbarriers.clear();
  copies.clear();
  for (Late& each : products) each = Late();
  for (Late& each : stores) each = Late();
}

// Whether nothing is left that the kernel should have waited for.
inline bool settled() {
  bool all = copies.empty();
  for (Late& each : products) all = all && each.groups.empty() && each.open.empty();
  for (Late& each : stores) all = all && each.groups.empty() && each.open.empty();
  return all;
}

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

  host::Map read() const {
    host::Map map;
    static_assert(sizeof map <= 128);
    std::memcpy(&map, opaque, sizeof map);
    return map;
  }
};

enum class L2 : u64 { kNormal, kOnce, kAgain };

inline void mbarrier_init(u32 barrier, u32 arrivals) {
  assert(barrier % 8 == 0 && arrivals > 0);
  host::MBarrier made;
  made.count = made.pending = arrivals;
  assert(host::mbarriers.emplace(host::absolute(barrier), made).second);
}
inline void mbarrier_init_fence() {}
inline void mbarrier_arrive(u32 barrier) {
  host::MBarrier& b = host::mbarriers.at(host::absolute(barrier));
  assert(b.pending > 0);
  --b.pending;
  b.settle();
}
inline void mbarrier_arrive_at(u32 barrier, u32 cta) {
  mbarrier_arrive(host::address_in(cta, barrier));
}
inline void mbarrier_arrive_expect(u32 barrier, u32 bytes) {
  host::mbarriers.at(host::absolute(barrier)).bytes += bytes;
  mbarrier_arrive(barrier);
}
inline bool mbarrier_try_wait(u32 barrier, u32 parity) {
  host::MBarrier& b = host::mbarriers.at(host::absolute(barrier));
  if ((b.phase & 1) != parity) return true;
  host::wait_for_change(b.phase);
  return (b.phase & 1) != parity;
}
inline bool mbarrier_test(u32 barrier, u32 parity) {
  host::MBarrier& b = host::mbarriers.at(host::absolute(barrier));
  return (b.phase & 1) != parity;
}

inline void prefetch(const TensorMap&) {}
inline void after_earlier_kernels() {}
inline u32 cluster_rank() { return host::rank(); }
inline void store_async(u32 to, u32 barrier, u32 cta, float x, float y) {
  const u32 place = host::address_in(cta, to);
  assert(to % 8 == 0);
  const auto move = [=] {
    host::write(place, x);
    host::write(place + 4, y);
  };
  host::copies.push_back({move, host::address_in(cta, barrier), 8});
}
inline void store_cluster(u32 to, u32 cta, const float* x) {
  assert(to % 16 == 0);
  for (int i = 0; i < 4; ++i) host::write(host::address_in(cta, to) + 4 * i, x[i]);
}
inline void cluster_sync() { host::wait_at(host::cta->all); }

// The chunks of a box are swizzled by their place in a CTA's shared memory.
inline void tma_load_to(u32 cta, u32 to, const TensorMap& map, u32 barrier, int c0, int c1, int c2,
                        int c3) {
  const host::Map tensor = map.read();
  assert(to % host::kSwizzleAtom == 0 && tensor.box[0] == 64);
  const auto move = [=] {
    host::walk(tensor, {c0, c1, c2, c3}, [&](u32 place, const char* from) {
      u16 x = 0;
      if (from) std::memcpy(&x, from, 2);
      host::write(host::address_in(cta, host::swizzled(to + place)), x);
    });
  };
  host::copies.push_back({move, host::address_in(cta, barrier), host::bytes(tensor)});
}
inline void tma_load(u32 to, const TensorMap& map, u32 barrier, int c0, int c1, int c2, int c3,
                     L2) {
  tma_load_to(host::rank(), to, map, barrier, c0, c1, c2, c3);
}
inline void tma_load_multicast(u32 to, const TensorMap& map, u32 barrier, int c0, int c1, int c2,
                               int c3, L2, u16 ctas) {
  for (u32 cta = 0; cta < host::cta_count; ++cta)
    if (ctas >> cta & 1) tma_load_to(cta, to, map, barrier, c0, c1, c2, c3);
}
inline void bulk_load(u32 to, const void* from, u32 bytes, u32 barrier) {
  assert(to % 16 == 0 && bytes % 16 == 0 && reinterpret_cast<unsigned long long>(from) % 16 == 0);
  const u32 place = host::absolute(to);
  host::copies.push_back({[=] { std::memcpy(host::at(place), from, bytes); },
                          host::absolute(barrier), bytes});
}
inline void tma_store(const TensorMap& map, u32 from, int c0, int c1, int c2, int c3) {
  const host::Map tensor = map.read();
  assert(from % host::kSwizzleAtom == 0 && tensor.box[0] == 64);
  host::stores[threadIdx.x].open.push_back([=] {
    host::walk(tensor, {c0, c1, c2, c3}, [&](u32 place, char* to) {
      if (to) std::memcpy(to, host::at(host::swizzled(from + place)), 2);
    });
  });
}
inline void bulk_commit() { host::stores[threadIdx.x].commit(); }
template <int kPending = 0>
void bulk_wait_read() {
  host::Late& mine = host::stores[threadIdx.x];
  while (mine.groups.size() > kPending) mine.do_one();
}

template <typename X>
X opaque(X x) {
  return x;
}
inline bool elect_one() { return threadIdx.x % 32 == 0; }
inline void barrier_sync(int id, int threads) { host::reach(id, threads, true); }
inline void barrier_arrive(int id, int threads) { host::reach(id, threads, false); }
inline void fence_async_proxy() {}
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
inline void stmatrix_x4(u32 address, u32 r0, u32 r1, u32 r2, u32 r3) {
  assert(address % 16 == 0);
  const u32 r[4] = {r0, r1, r2, r3};
  const int lane = threadIdx.x % 32;
  for (int i = 0; i < 4; ++i) {
    const u32 row = host::from_lane(address, 8 * i + lane / 4);
    host::write(row + 4 * (lane % 4), r[i]);
  }
}

template <typename T>
u32 add_zero_times(u32 x, u32 y) {
  const auto half = [](u16 a, u16 b) {
    return from_float<T>(host::number<T>(a) * 0.f + host::number<T>(b)).bits;
  };
  return half(x, y) | static_cast<u32>(half(x >> 16, y >> 16)) << 16;
}

template <typename T, int kN>
struct Wgmma {
  // The element that register i of this thread is: its row of 64, and its column.
  static int row(int i) {
    const int thread = threadIdx.x % 128;
    return thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8;
  }
  static int col(int i) { return i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2; }

  static void qk(float (&d)[kN / 2], u64 a, u64 b, bool accumulate) {
    float* const to = d;
    host::products[threadIdx.x].open.push_back([=] {
      const host::Operand left(a), right(b);
      float x[2][16];
      for (int r = 0; r < 2; ++r)
        for (int k = 0; k < 16; ++k)
          x[r][k] = host::number<T>(host::read<u16>(left.k_major(row(2 * r), k)));
      for (int i = 0; i < kN / 2; ++i) {
        float sum = accumulate ? to[i] : 0.f;
        for (int k = 0; k < 16; ++k)
          sum += x[i / 2 % 2][k] * host::number<T>(host::read<u16>(right.k_major(col(i), k)));
        to[i] = sum;
      }
    });
  }

  template <int kTransposedA, int kTransposedB>
  static void product(float (&d)[kN / 2], u64 a, u64 b) {
    float* const to = d;
    host::products[threadIdx.x].open.push_back([=] {
      const host::Operand left(a), right(b);
      float x[2][16], y[16];
      for (int r = 0; r < 2; ++r)
        for (int k = 0; k < 16; ++k)
          x[r][k] = host::number<T>(host::read<u16>(kTransposedA ? left.n_major(k, row(2 * r))
                                                                 : left.k_major(row(2 * r), k)));
      for (int c = 0; c < kN / 4; ++c) {  // of this thread's columns
        const int i = c / 2 * 4 + c % 2;
        for (int k = 0; k < 16; ++k)
          y[k] = host::number<T>(host::read<u16>(kTransposedB ? right.n_major(k, col(i))
                                                              : right.k_major(col(i), k)));
        for (int r = 0; r < 2; ++r)
          for (int k = 0; k < 16; ++k) to[i + 2 * r] += x[r][k] * y[k];
      }
    });
  }

  static void pv(float (&d)[kN / 2], const u32* a, u64 b) {
    // Lane 4g + q holds columns 2q, 2q + 1 (a[0], a[1]) and 2q + 8, 2q + 9 (a[2], a[3]) of rows g
    // and g + 8, in turn.
    static std::vector<std::array<u32, 4>> fragments(4096);
    std::copy(a, a + 4, fragments[threadIdx.x].begin());
    __syncwarp();
    std::array<std::array<float, 16>, 2> x;
    const int first = threadIdx.x / 4 * 4;
    for (int i = 0; i < 4; ++i)
      for (int q = 0; q < 4; ++q)
        for (int e = 0; e < 2; ++e)
          x[i % 2][i / 2 * 8 + 2 * q + e] = host::number<T>(fragments[first + q][i] >> 16 * e);
    __syncwarp();
    float* const to = d;
    host::products[threadIdx.x].open.push_back([=] {
      const host::Operand right(b);
      for (int i = 0; i < kN / 2; ++i)
        for (int k = 0; k < 16; ++k)
          to[i] += x[i / 2 % 2][k] * host::number<T>(host::read<u16>(right.n_major(k, col(i))));
    });
  }
};

inline void wgmma_fence() {}
inline void wgmma_commit() { host::products[threadIdx.x].commit(); }
template <int kPending>
void wgmma_wait() {
  host::wait_for_products(kPending);
}
template <int kN>
void pin(float (&)[kN]) {}

}  // namespace stof::ptx
