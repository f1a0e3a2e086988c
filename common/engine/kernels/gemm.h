// The one inner loop of linears and attention: a few rows of A times a few panels of columns of B.
//
// Each output element is a single chain of fused multiply-adds over the depth in ascending order, held in one lane of
// one register. Which rows and panels share a call changes speed only, never a bit.
#pragma once

#include <algorithm>

#include "vec.h"

namespace pando {

constexpr int kPanelVecs = 2;
constexpr int kPanel = kPanelVecs * Vec::kLanes;        // columns of a panel
constexpr int kMaxRows = Vec::kRegisters == 32 ? 12 : 6;  // rows of a register tile

// Most panels at once that fit the registers beside `rows` rows: enough independent chains to hide the latency.
constexpr int panels_for(int rows) {
  const int budget = (Vec::kRegisters == 32 ? 24 : 12) / (rows * kPanelVecs);
  return budget >= 4 ? 4 : budget >= 2 ? 2 : 1;
}

// c[r][p * kPanel + lane] (+)= sum over k of a[r * lda + k] * b[p * panel_stride + k * ldb + lane].
// kAccumulate continues the chain from what is in c instead of starting at zero.
template <class Element, int kRows, int kPanels, bool kAccumulate>
inline void register_tile(const float* a, int64_t lda, const typename Element::Type* b, int64_t ldb,
                          int64_t panel_stride, int64_t depth, float* c, int64_t ldc) {
  constexpr int kVecs = kPanels * kPanelVecs;
  Vec acc[kRows][kVecs];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int i = 0; i < kVecs; ++i)
      acc[r][i] = kAccumulate ? load(c + r * ldc + i * Vec::kLanes) : broadcast(0.0f);
  for (int64_t k = 0; k < depth; ++k) {
    Vec row_of_b[kVecs];
#pragma GCC unroll 8
    for (int i = 0; i < kVecs; ++i)
      row_of_b[i] = Element::widen(b + (i / kPanelVecs) * panel_stride + k * ldb + (i % kPanelVecs) * Vec::kLanes);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const Vec x = broadcast(a[r * lda + k]);
#pragma GCC unroll 8
      for (int i = 0; i < kVecs; ++i) acc[r][i] = fma(x, row_of_b[i], acc[r][i]);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int i = 0; i < kVecs; ++i) store(c + r * ldc + i * Vec::kLanes, acc[r][i]);
}

// `rows` (1 .. kMaxRows) of A times `panels` adjacent panels; c has room for whole panels.
template <class Element, bool kAccumulate, int kRows = kMaxRows>
inline void row_tile(int rows, const float* a, int64_t lda, const typename Element::Type* b, int64_t ldb,
                     int64_t panel_stride, int64_t panels, int64_t depth, float* c, int64_t ldc) {
  if constexpr (kRows > 1) {
    if (rows < kRows)
      return row_tile<Element, kAccumulate, kRows - 1>(rows, a, lda, b, ldb, panel_stride, panels, depth, c, ldc);
  }
  constexpr int kAtOnce = panels_for(kRows);
  int64_t p = 0;
  for (; p + kAtOnce <= panels; p += kAtOnce)
    register_tile<Element, kRows, kAtOnce, kAccumulate>(a, lda, b + p * panel_stride, ldb, panel_stride, depth,
                                                        c + p * kPanel, ldc);
  for (; p < panels; ++p)
    register_tile<Element, kRows, 1, kAccumulate>(a, lda, b + p * panel_stride, ldb, panel_stride, depth,
                                                  c + p * kPanel, ldc);
}

// Calls f(first, count) for tiles of nearly equal height, at most kMaxRows, that cover 0 .. rows.
template <class F>
inline void for_row_tiles(int64_t rows, F f) {
  int64_t tiles = (rows + kMaxRows - 1) / kMaxRows;
  for (int64_t first = 0; tiles > 0; --tiles) {
    const int64_t count = (rows - first + tiles - 1) / tiles;
    f(first, static_cast<int>(count));
    first += count;
  }
}

}  // namespace pando
