// The threads of a CTA, for those who run them: on_host.cpp and what launches a kernel.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <memory>
#include <random>
#include <vector>

#include "on_host.hpp"

namespace host {

// Where `members` threads meet. What they bring along is there until they meet again twice: in
// between, all of them have left.
struct Barrier {
  explicit Barrier(unsigned members) : values{Values(members), Values(members)} {}

  using Values = std::vector<long long>;
  Values values[2];
  unsigned arrived = 0, round = 0;
};

struct Warp {
  Barrier shuffled{32}, voted{32}, met{32};
};

constexpr size_t kStack = 64 << 10;

struct Thread {
  ucontext_t start;
  jmp_buf resume;
  std::unique_ptr<char[]> stack{new char[kStack]};  // not cleared: little of it is ever touched
  bool started = false, done = false;
  const unsigned* watched = nullptr;  // what it waited for a change of at last, and its value then
  unsigned seen = 0;
  bool waits() const { return done || (watched && *watched == seen); }
};

struct Cta {
  explicit Cta(unsigned count) : threads(count), warps(count / 32) {}
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  Barrier all{unsigned(threads.size())}, counted = all, any = all;
  jmp_buf scheduler;
};
extern __thread Cta* cta;
extern void (*body)();
// Does one of the things that happen beside the threads, such as the landing of a copy; false if
// there is none.
extern bool (*beside)();

void wait_at(Barrier& barrier);

// Before a CTA begins: what earlier kernels are to write is not written yet. And when all its
// threads wait for these: what it has begun to copy until then is what was there, and now they end.
void start_earlier();
void end_earlier();

// Runs one CTA; false if its threads wait for each other forever. Now and then a warp, or everyone,
// gets a turn: of what no barrier puts in order, all orders occur, a warp far ahead among them.
bool run_cta(std::mt19937& random);

}  // namespace host
