// Linears over packed weights: out = x @ weight.T + bias, fp32 rows in and out.
//
// A weight [out, in] is packed into panels [ceil(out / kPanel)][in][kPanel] in its own format (fp32, bf16, fp16) and
// widened in registers, so a step at few rows reads half the bytes when weights are bf16.
#include <cstddef>
#include <cstring>

#include "gemm.h"

namespace pando {
namespace {

constexpr int64_t kPanelGroup = 4;               // panels a thread takes at a time
constexpr int64_t kRowBlockBytes = 192 * 1024;  // rows of x that stay in L2 while the panels pass by

int64_t num_panels(int64_t out_features) { return (out_features + kPanel - 1) / kPanel; }

template <class T>
void pack(const T* weight, T* panels, int64_t out_features, int64_t in_features) {
#pragma omp parallel for schedule(static)
  for (int64_t p = 0; p < num_panels(out_features); ++p) {
    T* panel = panels + p * in_features * kPanel;
    for (int64_t lane = 0; lane < kPanel; ++lane) {
      const int64_t row = p * kPanel + lane;
      for (int64_t k = 0; k < in_features; ++k)
        panel[k * kPanel + lane] = row < out_features ? weight[row * in_features + k] : T{};
    }
  }
}

struct Linear {
  const float* x;
  const void* panels;
  const float* bias;
  float* out;
  int64_t rows, out_features, in_features;
};

// Copies `columns` columns of a finished tile to the output and adds the bias.
void finish(const Linear& call, const float* tile, int64_t first_row, int rows, int64_t first_column,
            int64_t columns, int64_t ldt) {
  for (int r = 0; r < rows; ++r) {
    float* out = call.out + (first_row + r) * call.out_features + first_column;
    if (call.bias == nullptr) {
      std::memcpy(out, tile + r * ldt, static_cast<size_t>(columns) * sizeof(float));
      continue;
    }
    for (int64_t c = 0; c < columns; ++c) out[c] = tile[r * ldt + c] + call.bias[first_column + c];
  }
}

template <class Element>
void multiply(const Linear& call, int64_t first_row, int64_t rows, int64_t first_panel, int64_t panels) {
  const auto* weights = static_cast<const typename Element::Type*>(call.panels);
  const int64_t panel_stride = call.in_features * kPanel;
  const int64_t first_column = first_panel * kPanel;
  const int64_t columns = std::min(panels * kPanel, call.out_features - first_column);
  const bool direct = call.bias == nullptr && columns == panels * kPanel;
  for_row_tiles(rows, [&](int64_t offset, int count) {
    const int64_t row = first_row + offset;
    float tile[kMaxRows * kPanelGroup * kPanel];
    float* c = direct ? call.out + row * call.out_features + first_column : tile;
    const int64_t ldc = direct ? call.out_features : kPanelGroup * kPanel;
    row_tile<Element, false>(count, call.x + row * call.in_features, call.in_features,
                             weights + first_panel * panel_stride, kPanel, panel_stride, panels, call.in_features, c,
                             ldc);
    if (!direct) finish(call, tile, row, count, first_column, columns, ldc);
  });
}

}  // namespace
}  // namespace pando

#define PANDO_API extern "C" __attribute__((visibility("default")))

PANDO_API int pando_vector_lanes() { return pando::Vec::kLanes; }

PANDO_API int64_t pando_packed_elements(int64_t out_features, int64_t in_features) {
  return pando::num_panels(out_features) * pando::kPanel * in_features;
}

PANDO_API void pando_pack_weight(const void* weight, void* panels, int64_t out_features, int64_t in_features,
                                 int format) {
  pando::with_format(format, [&](auto element) {
    using T = typename decltype(element)::Type;
    pando::pack(static_cast<const T*>(weight), static_cast<T*>(panels), out_features, in_features);
  });
}

PANDO_API void pando_linear(const float* x, const void* panels, const float* bias, float* out, int64_t rows,
                            int64_t out_features, int64_t in_features, int format, int num_threads) {
  using namespace pando;
  const Linear call{x, panels, bias, out, rows, out_features, in_features};
  const int64_t total_panels = num_panels(out_features);
  const int64_t groups = (total_panels + kPanelGroup - 1) / kPanelGroup;
  const int64_t row_bytes = in_features * static_cast<int64_t>(sizeof(float));
  const int64_t row_block = std::max<int64_t>(kMaxRows, kRowBlockBytes / row_bytes / kMaxRows * kMaxRows);
  const int64_t row_blocks = (rows + row_block - 1) / row_block;
  with_format(format, [&](auto element) {
    using Element = decltype(element);
#pragma omp parallel for schedule(dynamic) num_threads(num_threads)
    for (int64_t item = 0; item < row_blocks * groups; ++item) {
      const int64_t row = item / groups * row_block;
      const int64_t panel = item % groups * kPanelGroup;
      multiply<Element>(call, row, std::min(row_block, rows - row), panel,
                        std::min(kPanelGroup, total_panels - panel));
    }
  });
}
