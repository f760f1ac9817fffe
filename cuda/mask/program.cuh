// The accumulator that joins the leaves of a mask expression, over states of boxes and over words.
#pragma once

#include "mask/leaves.cuh"
#include "mask/node.cuh"
#include "types.cuh"

namespace stof::mask {

constexpr int kMaxNodes = 24;
constexpr int kMaxArrays = 16;
constexpr int kMaxDepth = 4;  // accumulators set aside: five take 2^5 leaves

// A kernel without formulas. Generated ones (stof_cupy/jit/mask_kernels.py) have these members.
struct NoFormulas {
  static constexpr u32 kKinds = ~0u;  // of nodes: one bit each
  static constexpr int kMinBlocks = 3;
  // The state of queries i0 .. i1 and keys j0 .. j1.
  __device__ static int box_state(int, int, int, int, int, const Array*) { return kPart; }
  // Bits of keys j .. j + 63 of query i. All lanes of a warp ask at once, each for the query after
  // that of the lane before.
  __device__ static u64 row_word(int, int, int, const Array*) { return 0; }
};

// The words of a formula for a warp's 32 queries, from its value for one element: each lane takes
// two keys of every query, so that what depends on the key alone is computed once.
template <typename Value>
__device__ __forceinline__ u64 formula_word(int query, int key, Value value) {
  const int lane = threadIdx.x % 32, first = query - lane;
  u64 word = 0;
#pragma unroll 4
  for (int r = 0; r < 32; ++r) {
    const u32 low = __ballot_sync(0xffffffffu, value(first + r, key + lane));
    const u32 high = __ballot_sync(0xffffffffu, value(first + r, key + 32 + lane));
    if (r == lane) word = low | static_cast<u64>(high) << 32;
  }
  return word;
}

struct Program {
  Node nodes[kMaxNodes];
  Array arrays[kMaxArrays];
};

// Words are combined bit by bit.
struct Bits {
  using Value = u64;
  __device__ static u64 complement(u64 x) { return ~x; }
  __device__ static u64 join(int how, u64 a, u64 b) {
    return how == kAnd ? a & b : how == kOr ? a | b : how == kXor ? a ^ b : b;
  }
};

// States by Kleene's logic.
struct States {
  using Value = u64;
  __device__ static u64 complement(u64 x) { return kFull - x; }
  __device__ static u64 join(int how, u64 a, u64 b) {
    if (how == kAnd) return smaller(a, b);
    if (how == kOr) return larger(a, b);
    if (how == kXor) return a == kPart || b == kPart ? u64{kPart} : a ^ b;
    return b;
  }
};

// The value of an expression, given that of each leaf. `aside` has room for kMaxDepth values,
// `step` apart.
template <typename Logic, typename Leaf>
__device__ __forceinline__ u64 evaluate(const Node* nodes, int count, u64* aside, int step,
                                        Leaf leaf) {
  u64 result = 0;
  int depth = 0;
#pragma unroll 1
  for (int n = 0; n < count; ++n) {
    const Node& node = nodes[n];
    if (node.kind == kPush) {
      aside[depth++ * step] = result;
      continue;
    }
    if (node.kind == kPop) {
      result = Logic::join(node.join, aside[--depth * step], result);
    } else {
      const u64 value = leaf(node, n);
      result =
          Logic::join(node.join, result, node.invert & kLeaf ? Logic::complement(value) : value);
    }
    if (node.invert & kResult) result = Logic::complement(result);
  }
  return result;
}

// Moves a box of the mask to a leaf's own positions and cuts it to the leaf; empty: not in it.
__device__ inline Box moved(const Box& box, const Node& node) {
  return {larger(box.q0 + node.q, 0), smaller(box.q1 + node.q, node.rows),
          larger(box.k0 + node.k, 0), smaller(box.k1 + node.k, node.cols)};
}

template <typename Formulas>
__device__ __forceinline__ State box_state(const Program& program, int count, const Facts* facts,
                                           Lead lead, int lead_inner, const Box& box, u64* aside,
                                           int step) {
  return static_cast<State>(
      evaluate<States>(program.nodes, count, aside, step, [&](const Node& node, int n) -> u64 {
        const Box own = moved(box, node);
        // What lies beyond a leaf may have any value; the host puts a frame around it.
        if (own.q0 >= own.q1 || own.k0 >= own.k1) return kPart;
        return leaf_state<Formulas>(node, facts[n], lead, lead_inner, program.arrays, own);
      }));
}

// Bits of keys k .. k + 63 of row q of the mask, those from `keys` on 0. All lanes of a warp ask at
// once, for neighbouring rows; a row may lie beyond the last.
template <typename Formulas>
__device__ __forceinline__ u64 row_word(const Program& program, int count, Lead lead,
                                        int lead_inner, int q, int k, int keys, u64* aside,
                                        int step) {
  return low_bits(keys - k) &
         evaluate<Bits>(program.nodes, count, aside, step, [&](const Node& node, int) -> u64 {
           const int row = q + node.q, col = k + node.k;
           if (is<Formulas>(node, kFormula))  // for all lanes at once, whatever their rows
             return Formulas::row_word(node.formula.which, row, col,
                                       program.arrays + node.formula.first);
           if (row < 0 || row >= node.rows || col >= node.cols || col <= -64) return 0;
           return leaf_word<Formulas>(node, lead, lead_inner, row, col);
         });
}

// What the rows q0 .. q1 of the mask have in common in a leaf, row by row.
__device__ __forceinline__ Facts row_facts(const Node& node, Lead lead, int q) {
  const int row = q + node.q;
  return row < 0 || row >= node.rows ? kNoFacts : facts(bounds(node, lead, row));
}

}  // namespace stof::mask
