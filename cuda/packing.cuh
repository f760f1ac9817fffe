// Sequences that lie anywhere, put one after another: all arrays of a packed run by one launch.
#pragma once

#include "types.cuh"

namespace stof {

// A thread a piece of a row of an array, an array for each block along y. There may be any number
// of sequences, so what is where is a table of 64-bit numbers: where each sequence ends, then for
// each array a `Column` and two numbers a sequence: where its first row is, and how many bytes
// further the next one. Where a row is: its address, or, for what was uploaded with the table,
// minus its distance from the beginning of that.
struct Packing {
  static constexpr int kThreads = 256;
  static constexpr int kMinBlocks = 4;
  static constexpr int kSmemBytes = 0;

  // What an array gets of each token: where it stands in its sequence, the number of that, an int
  // made of a long one, or a copy of a row in pieces of so many bytes.
  enum Kind : i64 { kPosition, kSequence, kNarrowed, kBytes1, kBytes2, kBytes4, kBytes8, kBytes16 };

  struct Column {
    i64 out;  // address
    i64 kind;
    i64 pieces;  // of a row
  };
  static constexpr int kColumn = sizeof(Column) / sizeof(i64);

  struct Params {
    const i64* table;
    i64 size;  // rows of each array; behind the sequences they are 0, and the number is -1
    int sequences;
  };

  __device__ static __forceinline__ void run(const Params& p, char*) {
    const i64* stop = p.table;
    const i64* words = stop + p.sequences + blockIdx.y * (kColumn + 2 * i64(p.sequences));
    const Column column = *reinterpret_cast<const Column*>(words);
    const i64 at = static_cast<i64>(blockIdx.x) * kThreads + threadIdx.x;
    if (at >= p.size * column.pieces) return;
    const i64 token = at / column.pieces, piece = at % column.pieces;

    int sequence = 0;  // the first one that ends after the token
    for (int end = p.sequences; sequence < end;) {
      const int middle = sequence + (end - sequence) / 2;
      if (stop[middle] <= token) {
        sequence = middle + 1;
      } else {
        end = middle;
      }
    }
    const bool known = sequence < p.sequences;
    const i64 position = !known ? 0 : token - (sequence ? stop[sequence - 1] : 0);
    char* out = reinterpret_cast<char*>(column.out);
    if (column.kind == kPosition) return store(out, token, static_cast<int>(position));
    if (column.kind == kSequence) return store(out, token, known ? sequence : -1);

    const i64* first = words + kColumn;
    const char* row = known ? address(p, first[sequence]) : nullptr;
    if (row) row += position * first[p.sequences + sequence];
    switch (column.kind) {
      case kNarrowed:
        return store(out, token, narrowed(piece_of<i64>(row, 0)));
      case kBytes1:
        return store(out, at, piece_of<u8>(row, piece));
      case kBytes2:
        return store(out, at, piece_of<u16>(row, piece));
      case kBytes4:
        return store(out, at, piece_of<u32>(row, piece));
      case kBytes8:
        return store(out, at, piece_of<u64>(row, piece));
      default:
        return store(out, at, piece_of<uint4>(row, piece));
    }
  }

  __device__ static __forceinline__ const char* address(const Params& p, i64 first) {
    const char* table = reinterpret_cast<const char*>(p.table);
    return first < 0 ? table - first : reinterpret_cast<const char*>(first);
  }

  template <typename T>
  __device__ static __forceinline__ T piece_of(const char* row, i64 piece) {
    return row ? reinterpret_cast<const T*>(row)[piece] : T{};
  }

  template <typename T>
  __device__ static __forceinline__ void store(char* out, i64 at, T value) {
    reinterpret_cast<T*>(out)[at] = value;
  }

  // Numbers that an int cannot hold, and negative ones, become -1: never one in range.
  __device__ static __forceinline__ int narrowed(i64 x) {
    return x < 0 || x > 0x7fffffff ? -1 : static_cast<int>(x);
  }
};

}  // namespace stof
