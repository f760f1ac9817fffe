// The keys that each token of packed documents sees: those of its run of equal ids.
#pragma once

#include "types.cuh"

namespace stof::mask {

// One CTA a chunk of `kChunk` tokens. Where runs begin is a bitmap, one word a warp. A run may
// begin before the chunk and end after it; all threads search for where, a chunk's length at a
// time.
template <typename T, int kChunk>
struct Documents {
  static constexpr int kThreads = 512;
  static constexpr int kMinBlocks = 2;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kWords = kChunk / 32;
  static_assert(kChunk % kThreads == 0 && kWords <= kThreads, "a thread a word");

  struct Shared {
    u32 begins[kWords];
    int before[kWords];  // last begin of a run before the word
    int after[kWords];   // first begin of a run after it
    int nearest[2];      // to the left and right of the chunk, see `reach`
  };
  static constexpr int kSmemBytes = sizeof(Shared);

  struct Params {
    const T* ids;  // (lead, tokens); negative ones are padding, which sees no keys
    int* start;    // (lead, tokens)
    int* stop;
    i64 id_stride, lead_stride, out_lead_stride;  // in elements
    int tokens;
    int causal;  // a token sees no key after itself
  };

  __device__ static __forceinline__ void run(const Params& p, char* smem) {
    Shared& shared = *reinterpret_cast<Shared*>(smem);
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const T* ids = p.ids + blockIdx.y * p.lead_stride;
    const i64 first = static_cast<i64>(blockIdx.x) * kChunk;
    const i64 end = min(first + kChunk, static_cast<i64>(p.tokens));

    if (threadIdx.x < 2) shared.nearest[threadIdx.x] = 0x7fffffff;
    for (int word = warp; word < kWords; word += kWarps) {
      const i64 at = first + word * 32 + lane;
      const bool begins =
          at < end && (at == 0 || ids[at * p.id_stride] != ids[(at - 1) * p.id_stride]);
      const u32 bits = __ballot_sync(0xffffffffu, begins);
      if (lane == 0) shared.begins[word] = bits;
    }
    __syncthreads();

    // What nobody asks for is not searched: where padding begins, and the end of causal documents.
    i64 opened = first, closed = end;
    const T left = ids[first * p.id_stride], right = ids[(end - 1) * p.id_stride];
    if (!(shared.begins[0] & 1) && left >= 0)
      opened -= reach(p, ids, first - 1, -1, left, &shared.nearest[0]);
    if (!p.causal && right >= 0) closed += reach(p, ids, end, 1, right, &shared.nearest[1]);

    if (threadIdx.x < kWords) {
      const int word = threadIdx.x;
      int i = word - 1, j = word + 1;
      while (i >= 0 && shared.begins[i] == 0) --i;
      while (j < kWords && shared.begins[j] == 0) ++j;
      shared.before[word] = i < 0 ? opened : first + i * 32 + 31 - __clz(shared.begins[i]);
      shared.after[word] = j == kWords ? closed : first + j * 32 + __ffs(shared.begins[j]) - 1;
    }
    __syncthreads();

    for (int word = warp; word < kWords; word += kWarps) {
      const int base = first + word * 32;
      const i64 at = first + word * 32 + lane;
      if (at >= end) return;
      const u32 upto = 0xffffffffu >> (31 - lane);
      const u32 low = shared.begins[word] & upto, high = shared.begins[word] & ~upto;
      int start = low ? base + 31 - __clz(low) : shared.before[word];
      int stop = high ? base + __ffs(high) - 1 : shared.after[word];
      if (p.causal) stop = at + 1;
      if (ids[at * p.id_stride] < 0) start = stop = 0;
      p.start[blockIdx.y * p.out_lead_stride + at] = start;
      p.stop[blockIdx.y * p.out_lead_stride + at] = stop;
    }
  }

  // How many tokens from `from` on, to the left or the right (`step` -1 or 1), have the id `id`
  // until another one or the end comes. All threads get it; `nearest` is 2**31 - 1 before.
  __device__ static __forceinline__ i64 reach(const Params& p, const T* ids, i64 from, int step,
                                              T id, int* nearest) {
    const i64 room = step < 0 ? from + 1 : p.tokens - from;
    for (i64 done = 0; done < room; done += kChunk) {
      i64 other = room;
#pragma unroll
      for (int i = kChunk - kThreads; i >= 0; i -= kThreads) {
        const i64 by = done + i + threadIdx.x;
        if (by < room && ids[(from + step * by) * p.id_stride] != id) other = by;
      }
      if (other < room) atomicMin(nearest, static_cast<int>(other));
      if (__syncthreads_or(other < room)) break;
    }
    return min(static_cast<i64>(*nearest), room);
  }
};

}  // namespace stof::mask
