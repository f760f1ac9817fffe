// What kernels of sm_90a on the CPU share, compiled once.
#include "on_hopper.hpp"

#include <array>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <tuple>

#include "on_host_cta.hpp"
#include "on_host_mma.hpp"

namespace host {

static std::mt19937 chance(1);
char* shared;
unsigned cta_threads, cta_count, elected;

// Where others may come first, now and then a long way: what a thread does next need not be soon.
static void perhaps_give_way() {
  for (unsigned turns = chance() % (chance() % 8 ? 2 : 64); turns > 0; --turns) give_way();
}

struct Named {
  int arrived = 0;
  unsigned round = 0;
};
static std::map<std::pair<unsigned, int>, Named> named;  // by CTA and number

void reach(int id, int members, bool wait) {
  Named& barrier = named[{rank(), id}];
  if (++barrier.arrived == members) {
    barrier.arrived = 0;
    ++barrier.round;
  } else if (wait) {
    wait_for_change(barrier.round);
  }
}

// ---------------------------------------------------------------- proxies

static std::vector<unsigned short> writer;  // of each byte not fenced, its thread; from 1
static std::vector<std::vector<std::pair<unsigned, unsigned>>> unfenced(8192);

static unsigned short* writers(unsigned address) { return writer.data() + (at(address) - shared); }

void written(unsigned address, unsigned bytes) {
  std::fill_n(writers(address), bytes, threadIdx.x + 1);
  unfenced[threadIdx.x].push_back({address, bytes});
}

void fence() {
  const unsigned me = threadIdx.x;
  for (const auto& [address, bytes] : unfenced[me]) {
    unsigned short* const by = writers(address);
    for (unsigned i = 0; i < bytes; ++i)
      if (by[i] == me + 1) by[i] = 0;
  }
  unfenced[me].clear();
}

// Where a copy or a product reads or writes.
static bool all_fenced;
static char* fenced(unsigned address, unsigned bytes) {
  const unsigned short* const by = writers(address);
  for (unsigned i = 0; i < bytes; ++i)
    if (by[i]) all_fenced = false;
  return at(address);
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

static std::map<unsigned, MBarrier> mbarriers;

struct Copy {
  std::function<void()> move;
  unsigned barrier;
  unsigned bytes;
};
static std::vector<Copy> copies;
// Boxes that were asked for and have not been loaded yet.
static std::set<std::pair<const void*, std::array<int, 4>>> asked;

static bool land_one() {
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
static void walk(const Map& map, const int (&corner)[4], Visit visit) {
  assert(map.element == 2);
  unsigned count = 1;
  for (const unsigned side : map.box) count *= side;
  unsigned in_box[4] = {};
  for (unsigned place = 0; place < count; ++place) {
    long long c[4];
    bool inside = true;
    for (int i = 0; i < 4; ++i) {
      c[i] = corner[i] + static_cast<long long>(in_box[i]);
      inside = inside && c[i] >= 0 && c[i] < map.dims[i];
    }
    char* element = map.data + 2 * c[0];
    for (int i = 0; i < 3; ++i) element += c[i + 1] * map.strides[i];
    visit(2 * place, inside ? element : nullptr);
    for (int i = 0; i < 4 && ++in_box[i] == map.box[i]; ++i) in_box[i] = 0;
  }
}

static unsigned bytes(const Map& map) {
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
static std::vector<Late> products, stores;  // of the threads of a cluster

// Operands of the products that threads of a warpgroup do one after another, as numbers: all of
// them read the same, and nobody writes meanwhile. By descriptor, order and size.
static std::map<std::tuple<unsigned long long, bool, int>, std::vector<float>> operands;

// A group of products is done for all threads of a warpgroup, or for none: the hardware lets no
// warp run ahead so far that its leader could release operands which others have yet to read.
void wait_for_products(unsigned pending) {
  const unsigned me = threadIdx.x, first = me / 128 * 128;
  const unsigned committed = products[me].committed;
  while (products[me].done() + pending < committed) {
    const unsigned group = products[me].done();
    for (unsigned i = first; i < first + 128; ++i)
      while (products[i].committed <= group) wait_for_change(products[i].committed);
    if (products[me].done() > group) continue;  // somebody else has done it meanwhile
    operands.clear();
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

static void reset() {
  named.clear();
  mbarriers.clear();
  copies.clear();
  products.assign(cta_threads * cta_count, Late());
  stores.assign(cta_threads * cta_count, Late());
  for (auto& each : unfenced) each.clear();
  std::fill(writer.begin(), writer.end(), 0);
  exchanges.assign(cta_threads * cta_count / 32, {});
  start_earlier();
}

void wait_for_kernels() { end_earlier(); }

// Whether nothing is left that the kernel should have waited for.
static bool settled() {
  bool all = copies.empty();
  for (Late& each : products) all = all && each.groups.empty() && each.open.empty();
  for (Late& each : stores) all = all && each.groups.empty() && each.open.empty();
  return all;
}

static Map map_of(const stof::ptx::TensorMap& from) {
  Map map;
  static_assert(sizeof map <= sizeof from);
  std::memcpy(&map, &from, sizeof map);
  return map;
}

void commit_products() {
  products[threadIdx.x].commit();
  perhaps_give_way();
}
void commit_stores() { stores[threadIdx.x].commit(); }
void wait_for_stores(unsigned pending) {
  Late& mine = stores[threadIdx.x];
  while (mine.groups.size() > pending) mine.do_one();
}

// The row of 64 that sum i of this thread is of; its column is i / 4 * 8 + threadIdx.x % 4 * 2 +
// i % 2.
static int row(int i) {
  const int thread = threadIdx.x % 128;
  return thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8;
}

template <typename T>
static float element(unsigned address) {
  unsigned short bits;
  std::memcpy(&bits, fenced(address, 2), 2);
  return number<T>(bits);
}

// Where row or column n of `size` is among them: those of a thread are next to each other.
static int place(int n, int size) { return n % 8 / 2 * (size / 4) + n / 8 * 2 + n % 2; }

// The 16 by `size` numbers of an operand.
template <typename T>
static const float* operand(unsigned long long descriptor, bool n_major, int size) {
  std::vector<float>& numbers = operands[{descriptor, n_major, size}];
  if (numbers.empty()) {
    numbers.resize(16 * size);
    const Operand from(descriptor);
    for (int k = 0; k < 16; ++k)
      for (int n = 0; n < size; ++n)
        numbers[k * size + place(n, size)] =
            element<T>(n_major ? from.n_major(k, n) : from.k_major(n, k));
  }
  return numbers.data();
}

// Adds the products of two rows of the left and a thread's columns of the right to its sums. Of
// numbers alone, where to look for undefined behaviour takes ten times as long.
__attribute__((no_sanitize("undefined"))) static void add_products(float* to, int count,
                                                                   const float (&x)[2][16],
                                                                   const float* right) {
  const int each = count / 2;
  float sums[2][64];
  for (int c = 0; c < each; ++c)
    for (int r = 0; r < 2; ++r) sums[r][c] = to[c / 2 * 4 + c % 2 + 2 * r];
  for (int k = 0; k < 16; ++k, right += 2 * count)
    for (int r = 0; r < 2; ++r)
      for (int c = 0; c < each; ++c) sums[r][c] += x[r][k] * right[c];
  for (int c = 0; c < each; ++c)
    for (int r = 0; r < 2; ++r) to[c / 2 * 4 + c % 2 + 2 * r] = sums[r][c];
}

template <typename T>
void multiply(float* to, int count, unsigned long long a, unsigned long long b, bool transposed_a,
              bool transposed_b, bool accumulate) {
  assert(count <= 128 && count % 4 == 0);
  products[threadIdx.x].open.push_back([=] {
    const float* const left = operand<T>(a, transposed_a, 64);
    const float* const right = operand<T>(b, transposed_b, 2 * count);
    float x[2][16];
    for (int r = 0; r < 2; ++r)
      for (int k = 0; k < 16; ++k) x[r][k] = left[k * 64 + place(row(2 * r), 64)];
    if (!accumulate) std::fill_n(to, count, 0.f);
    add_products(to, count, x, right + threadIdx.x % 4 * count / 2);
  });
}

template <typename T>
void multiply(float* to, int count, const unsigned* a, unsigned long long b) {
  assert(count <= 128 && count % 4 == 0);
  // Lane 4g + q holds columns 2q, 2q + 1 (a[0], a[1]) and 2q + 8, 2q + 9 (a[2], a[3]) of rows g
  // and g + 8, in turn.
  static std::vector<std::array<unsigned, 4>> fragments(4096);
  std::copy(a, a + 4, fragments[threadIdx.x].begin());
  meet_warp();
  std::array<std::array<unsigned, 4>, 4> of_rows;
  std::copy_n(fragments.begin() + threadIdx.x / 4 * 4, 4, of_rows.begin());
  meet_warp();
  products[threadIdx.x].open.push_back([=] {
    float x[2][16];
    for (int i = 0; i < 4; ++i)
      for (int q = 0; q < 4; ++q)
        for (int e = 0; e < 2; ++e)
          x[i % 2][i / 2 * 8 + 2 * q + e] = number<T>(of_rows[q][i] >> 16 * e);
    const float* const right = operand<T>(b, true, 2 * count);
    add_products(to, count, x, right + threadIdx.x % 4 * count / 2);
  });
}

template void multiply<stof::f16>(float*, int, unsigned long long, unsigned long long, bool, bool,
                                  bool);
template void multiply<stof::bf16>(float*, int, unsigned long long, unsigned long long, bool, bool,
                                   bool);
template void multiply<stof::f16>(float*, int, const unsigned*, unsigned long long);
template void multiply<stof::bf16>(float*, int, const unsigned*, unsigned long long);

static void (*run_on)(char*);

int launch(const Kernel& kernel, unsigned grid, unsigned seed) {
  run_on = kernel.run;
  body = [] { run_on(shared + rank() * kEach); };
  std::vector<char> memory(kernel.ctas * kEach + 1023);
  shared = memory.data() + (-reinterpret_cast<unsigned long long>(memory.data()) & 1023);
  cta_threads = kernel.threads;
  cta_count = kernel.ctas;
  chance.seed(seed);
  elected = chance() % 32;
  writer.assign(kernel.ctas * kEach, 0);
  all_fenced = true;
  std::mt19937 random(seed);
  Cta all(kernel.threads * kernel.ctas);
  cta = &all;
  beside = land_one;
  gridDim.x = grid;
  for (blockIdx.x = 0; blockIdx.x < grid; blockIdx.x += kernel.ctas) {
    std::memset(shared, 0xff, kernel.ctas * kEach);
    reset();
    if (!run_cta(random)) return 1;
    if (!settled()) return 2;
    if (!all_fenced) return 3;
    assert(asked.empty());
  }
  return 0;
}

}  // namespace host

namespace stof::ptx {

void mbarrier_init(u32 barrier, u32 arrivals) {
  assert(barrier % 8 == 0 && arrivals > 0);
  host::MBarrier made;
  made.count = made.pending = arrivals;
  assert(host::mbarriers.emplace(host::absolute(barrier), made).second);
}

void mbarrier_arrive(u32 barrier) {
  host::MBarrier& b = host::mbarriers.at(host::absolute(barrier));
  assert(b.pending > 0);
  --b.pending;
  b.settle();
  host::perhaps_give_way();
}

void mbarrier_arrive_expect(u32 barrier, u32 bytes) {
  host::mbarriers.at(host::absolute(barrier)).bytes += bytes;
  mbarrier_arrive(barrier);
}

bool mbarrier_try_wait(u32 barrier, u32 parity) {
  host::MBarrier& b = host::mbarriers.at(host::absolute(barrier));
  if ((b.phase & 1) != parity) return true;
  host::wait_for_change(b.phase);
  return (b.phase & 1) != parity;
}

bool mbarrier_test(u32 barrier, u32 parity) {
  host::MBarrier& b = host::mbarriers.at(host::absolute(barrier));
  return (b.phase & 1) != parity;
}

void store_async(u32 to, u32 barrier, u32 cta, float x, float y) {
  const u32 place = host::address_in(cta, to);
  assert(to % 8 == 0);
  const auto move = [=] {
    std::memcpy(host::fenced(place, 4), &x, 4);
    std::memcpy(host::fenced(place + 4, 4), &y, 4);
  };
  host::copies.push_back({move, host::address_in(cta, barrier), 8});
}

void prefetch_l2(const TensorMap& map, int c0, int c1, int c2, int c3) {
  host::asked.insert({&map, {c0, c1, c2, c3}});
}

void tma_load_to(u32 cta, u32 to, const TensorMap& map, u32 barrier, int c0, int c1, int c2,
                 int c3) {
  host::asked.erase({&map, {c0, c1, c2, c3}});
  const host::Map tensor = host::map_of(map);
  assert(to % host::kSwizzleAtom == 0 && tensor.box[0] == 64);
  const auto move = [=] {
    host::walk(tensor, {c0, c1, c2, c3}, [&](u32 place, const char* from) {
      u16 x = 0;
      if (from) std::memcpy(&x, from, 2);
      std::memcpy(host::fenced(host::address_in(cta, host::swizzled(to + place)), 2), &x, 2);
    });
  };
  host::copies.push_back({move, host::address_in(cta, barrier), host::bytes(tensor)});
}

void tma_load_multicast(u32 to, const TensorMap& map, u32 barrier, int c0, int c1, int c2, int c3,
                        L2, u16 ctas) {
  for (u32 cta = 0; cta < host::cta_count; ++cta)
    if (ctas >> cta & 1) tma_load_to(cta, to, map, barrier, c0, c1, c2, c3);
}

void bulk_load(u32 to, const void* from, u32 bytes, u32 barrier) {
  assert(to % 16 == 0 && bytes % 16 == 0 && reinterpret_cast<unsigned long long>(from) % 16 == 0);
  const u32 place = host::absolute(to);
  host::copies.push_back({[=] { std::memcpy(host::fenced(place, bytes), from, bytes); },
                          host::absolute(barrier), bytes});
}

void tma_store(const TensorMap& map, u32 from, int c0, int c1, int c2, int c3) {
  const host::Map tensor = host::map_of(map);
  assert(from % host::kSwizzleAtom == 0 && tensor.box[0] == 64);
  host::stores[threadIdx.x].open.push_back([=] {
    host::walk(tensor, {c0, c1, c2, c3}, [&](u32 place, char* to) {
      const char* inside = host::fenced(host::swizzled(from + place), 2);
      if (to) std::memcpy(to, inside, 2);
    });
  });
}

void stmatrix_x4(u32 address, u32 r0, u32 r1, u32 r2, u32 r3) {
  assert(address % 16 == 0);
  const u32 r[4] = {r0, r1, r2, r3};
  const int lane = threadIdx.x % 32;
  for (int i = 0; i < 4; ++i) {
    const u32 row = host::from_lane(address, 8 * i + lane / 4);
    host::write(row + 4 * (lane % 4), r[i]);
  }
}

void ldmatrix_x4(u32 (&r)[4], u32 address) {
  assert(address % 16 == 0);
  const int lane = threadIdx.x % 32;
  for (int i = 0; i < 4; ++i) {
    const u32 row = host::from_lane(address, 8 * i + lane / 4);
    r[i] = host::read<u32>(row + 4 * (lane % 4));
  }
}

}  // namespace stof::ptx
