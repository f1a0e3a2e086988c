// Row operations between the linears: RMS norm, head norm with rotation, gated activation. fp32, one row at a time.
#include <cmath>
#include <cstring>

#include "vec.h"

namespace pando {
namespace {

constexpr int64_t kParallelElements = 32768;  // below this, waking a thread costs more than it saves

int threads_for(int64_t elements, int num_threads) { return elements < kParallelElements ? 1 : num_threads; }

// Sum of squares in four lanes-wide chains, then the lanes, then the tail.
float sum_squares(const float* x, int64_t width) {
  Vec acc[4] = {broadcast(0.0f), broadcast(0.0f), broadcast(0.0f), broadcast(0.0f)};
  int64_t i = 0;
  for (int chain = 0; i + Vec::kLanes <= width; i += Vec::kLanes, chain = (chain + 1) % 4) {
    const Vec value = load(x + i);
    acc[chain] = fma(value, value, acc[chain]);
  }
  float sum = sum_lanes(add(add(acc[0], acc[1]), add(acc[2], acc[3])));
  for (; i < width; ++i) sum = std::fma(x[i], x[i], sum);
  return sum;
}

void norm_row(const float* x, const float* weight, float* out, int64_t width, float eps) {
  const float inverse = 1.0f / std::sqrt(sum_squares(x, width) / static_cast<float>(width) + eps);
  for (int64_t i = 0; i < width; ++i) out[i] = x[i] * inverse * weight[i];
}

// (low, high) halves of a head turn by the position's angles: x * cos + rotate_half(x) * sin.
void rotate_head(float* head, const float* cos, const float* sin, int64_t half) {
  for (int64_t i = 0; i < half; ++i) {
    const float low = head[i];
    const float high = head[half + i];
    head[i] = low * cos[i] - high * sin[i];
    head[half + i] = high * cos[i] + low * sin[i];
  }
}

Vec silu_mul(Vec gate, Vec up) {
  const Vec one = broadcast(1.0f);
  return mul(div(gate, add(one, exp(sub(broadcast(0.0f), gate)))), up);
}

void silu_mul_row(const float* gate, const float* up, float* out, int64_t width) {
  int64_t i = 0;
  for (; i + Vec::kLanes <= width; i += Vec::kLanes) store(out + i, silu_mul(load(gate + i), load(up + i)));
  if (i == width) return;
  float tail[3][Vec::kLanes] = {};  // the tail takes the same vector code, so its arithmetic is the same
  const size_t bytes = static_cast<size_t>(width - i) * sizeof(float);
  std::memcpy(tail[0], gate + i, bytes);
  std::memcpy(tail[1], up + i, bytes);
  store(tail[2], silu_mul(load(tail[0]), load(tail[1])));
  std::memcpy(out + i, tail[2], bytes);
}

}  // namespace
}  // namespace pando

#define PANDO_API extern "C" __attribute__((visibility("default")))

PANDO_API void pando_rms_norm(const float* x, const float* weight, float* out, int64_t rows, int64_t width, float eps,
                              int num_threads) {
#pragma omp parallel for schedule(static) num_threads(pando::threads_for(rows * width, num_threads))
  for (int64_t r = 0; r < rows; ++r) pando::norm_row(x + r * width, weight, out + r * width, width, eps);
}

PANDO_API void pando_rotate(float* qkv, const int32_t* positions, const float* cos, const float* sin,
                            const float* q_norm, const float* k_norm, int64_t rows, int64_t num_heads,
                            int64_t num_kv_heads, int64_t head_dim, float eps, int num_threads) {
  const int64_t half = head_dim / 2;
  const int64_t stride = (num_heads + 2 * num_kv_heads) * head_dim;
#pragma omp parallel for schedule(static) num_threads(pando::threads_for(rows * stride, num_threads))
  for (int64_t r = 0; r < rows; ++r) {
    const float* row_cos = cos + positions[r] * half;
    const float* row_sin = sin + positions[r] * half;
    for (int64_t h = 0; h < num_heads + num_kv_heads; ++h) {
      float* head = qkv + r * stride + h * head_dim;
      const float* weight = h < num_heads ? q_norm : k_norm;
      if (weight != nullptr) pando::norm_row(head, weight, head, head_dim, eps);
      pando::rotate_head(head, row_cos, row_sin, half);
    }
  }
}

PANDO_API void pando_silu_mul(const float* gate_up, float* out, int64_t rows, int64_t width, int num_threads) {
#pragma omp parallel for schedule(static) num_threads(pando::threads_for(rows * width, num_threads))
  for (int64_t r = 0; r < rows; ++r) {
    const float* gate = gate_up + r * 2 * width;
    pando::silu_mul_row(gate, gate + width, out + r * width, width);
  }
}
