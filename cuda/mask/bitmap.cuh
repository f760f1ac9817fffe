// The bit order of a 64x64 mask tile. The host side, and the only other statement of it, is
// stof_cupy/masks/bitmap.py; tests/masks/test_bitmap.py holds the two together.
//
// A tile is 64 words of 64 bits (STOF section 4.2.1). A word is one 8x8 inner tile, its bits
// row-major, least significant first; the words lie column-major, so that the lanes of a warp that
// share inner columns read neighbouring words.
#pragma once

namespace stof {

constexpr int kBitmapTile = 64;   // rows and columns of a tile
constexpr int kBitmapWords = 64;  // 64-bit words of a tile

// The word of a tile that holds element (row, col), 0 <= row, col < kBitmapTile.
constexpr int bitmap_word(int row, int col) { return (col >> 3) * 8 + (row >> 3); }

// The bit of that word.
constexpr int bitmap_bit(int row, int col) { return (row & 7) * 8 + (col & 7); }

}  // namespace stof
