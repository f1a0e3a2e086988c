// One SIMD register of fp32, with exactly the operations the kernels need.
//
// Every operation is correctly rounded and spelled out (fused or not), and reductions have one fixed order, so a
// kernel's result depends on its operands alone. NaN passes through `exp` and shows up in the sums.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#endif

namespace pando {

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)

struct Vec {
  static constexpr int kLanes = 16;
  static constexpr int kRegisters = 32;
  __m512 v;
};
inline Vec broadcast(float x) { return {_mm512_set1_ps(x)}; }
inline Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, Vec a) { _mm512_storeu_ps(p, a.v); }
inline Vec add(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Vec sub(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Vec mul(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Vec div(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
inline Vec round(Vec a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
inline Vec zero_where_less(Vec a, Vec x, Vec limit) {
  return {_mm512_mask_mov_ps(a.v, _mm512_cmp_ps_mask(x.v, limit.v, _CMP_LT_OQ), _mm512_setzero_ps())};
}
inline Vec power_of_two(Vec n) {
  const __m512i biased = _mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(biased, 23))};
}
inline Vec load_bf16(const uint16_t* p) {
  const __m256i raw = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(raw), 16))};
}
inline Vec load_fp16(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline Vec load_int8(const int8_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}

#elif defined(__AVX2__) && defined(__FMA__)

struct Vec {
  static constexpr int kLanes = 8;
  static constexpr int kRegisters = 16;
  __m256 v;
};
inline Vec broadcast(float x) { return {_mm256_set1_ps(x)}; }
inline Vec load(const float* p) { return {_mm256_loadu_ps(p)}; }
inline void store(float* p, Vec a) { _mm256_storeu_ps(p, a.v); }
inline Vec add(Vec a, Vec b) { return {_mm256_add_ps(a.v, b.v)}; }
inline Vec sub(Vec a, Vec b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline Vec mul(Vec a, Vec b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline Vec div(Vec a, Vec b) { return {_mm256_div_ps(a.v, b.v)}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
inline Vec max(Vec a, Vec b) { return {_mm256_max_ps(a.v, b.v)}; }
inline Vec min(Vec a, Vec b) { return {_mm256_min_ps(a.v, b.v)}; }
inline Vec round(Vec a) { return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
inline Vec zero_where_less(Vec a, Vec x, Vec limit) {
  return {_mm256_andnot_ps(_mm256_cmp_ps(x.v, limit.v, _CMP_LT_OQ), a.v)};
}
inline Vec power_of_two(Vec n) {
  const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(n.v), _mm256_set1_epi32(127));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(biased, 23))};
}
inline Vec load_bf16(const uint16_t* p) {
  const __m128i raw = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(raw), 16))};
}
inline Vec load_fp16(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
inline Vec load_int8(const int8_t* p) {
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))))};
}

#else  // any other CPU: plain loops, vectorised by the compiler where it can

inline float half_to_float(uint16_t bits) {
  _Float16 half;
  std::memcpy(&half, &bits, sizeof half);
  return static_cast<float>(half);
}

struct Vec {
  static constexpr int kLanes = 8;
  static constexpr int kRegisters = 16;
  float v[kLanes];
};
template <class F>
inline Vec each(F f) {
  Vec out;
  for (int i = 0; i < Vec::kLanes; ++i) out.v[i] = f(i);
  return out;
}
inline Vec broadcast(float x) { return each([&](int) { return x; }); }
inline Vec load(const float* p) { return each([&](int i) { return p[i]; }); }
inline void store(float* p, Vec a) { std::memcpy(p, a.v, sizeof a.v); }
inline Vec add(Vec a, Vec b) { return each([&](int i) { return a.v[i] + b.v[i]; }); }
inline Vec sub(Vec a, Vec b) { return each([&](int i) { return a.v[i] - b.v[i]; }); }
inline Vec mul(Vec a, Vec b) { return each([&](int i) { return a.v[i] * b.v[i]; }); }
inline Vec div(Vec a, Vec b) { return each([&](int i) { return a.v[i] / b.v[i]; }); }
inline Vec fma(Vec a, Vec b, Vec c) { return each([&](int i) { return std::fma(a.v[i], b.v[i], c.v[i]); }); }
inline Vec max(Vec a, Vec b) { return each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; }); }
inline Vec min(Vec a, Vec b) { return each([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; }); }
inline Vec round(Vec a) { return each([&](int i) { return std::nearbyint(a.v[i]); }); }
inline Vec zero_where_less(Vec a, Vec x, Vec limit) {
  return each([&](int i) { return x.v[i] < limit.v[i] ? 0.0f : a.v[i]; });
}
inline Vec power_of_two(Vec n) {
  return each([&](int i) { return n.v[i] == n.v[i] ? std::ldexp(1.0f, static_cast<int>(n.v[i])) : n.v[i]; });
}
inline Vec load_bf16(const uint16_t* p) {
  return each([&](int i) {
    const uint32_t bits = static_cast<uint32_t>(p[i]) << 16;
    float out;
    std::memcpy(&out, &bits, sizeof out);
    return out;
  });
}
inline Vec load_fp16(const uint16_t* p) {
  return each([&](int i) { return half_to_float(p[i]); });
}
inline Vec load_int8(const int8_t* p) {
  return each([&](int i) { return static_cast<float>(p[i]); });
}

#endif

// out[c * ldo + r] = in[r * ldi + c] for an 8 x 8 block.
#if defined(__AVX2__)
inline void transpose8(const float* in, int64_t ldi, float* out, int64_t ldo) {
  __m256 r[8], pairs[8];
  for (int i = 0; i < 8; ++i) r[i] = _mm256_loadu_ps(in + i * ldi);
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    pairs[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    r[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
    r[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xEE);
    r[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
    r[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xEE);
  }
  for (int i = 0; i < 4; ++i) {
    _mm256_storeu_ps(out + i * ldo, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
    _mm256_storeu_ps(out + (i + 4) * ldo, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
  }
}
#else
inline void transpose8(const float* in, int64_t ldi, float* out, int64_t ldo) {
  for (int r = 0; r < 8; ++r)
    for (int c = 0; c < 8; ++c) out[c * ldo + r] = in[r * ldi + c];
}
#endif

// Sum of the lanes, by halves: lane i + lane i + n/2 first.
inline float sum_lanes(Vec a) {
  float lanes[Vec::kLanes];
  store(lanes, a);
  for (int half = Vec::kLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] = lanes[i] + lanes[i + half];
  return lanes[0];
}

inline float max_lanes(Vec a) {
  float lanes[Vec::kLanes];
  store(lanes, a);
  float best = lanes[0];
  for (int i = 1; i < Vec::kLanes; ++i) best = lanes[i] > best ? lanes[i] : best;
  return best;
}

// e^x within 2 ulp; exactly 1 at 0 and exactly 0 below -87. Argument reduction by ln 2 in two parts, then the
// degree-5 minimax polynomial of Cephes' expf.
inline Vec exp(Vec x) {
  const Vec clamped = min(broadcast(88.0f), max(broadcast(-87.0f), x));  // NaN is the second operand: it passes
  const Vec n = round(mul(clamped, broadcast(1.44269504088896341f)));
  Vec r = fma(n, broadcast(-0.693359375f), clamped);
  r = fma(n, broadcast(2.12194440e-4f), r);
  Vec p = broadcast(1.9875691500e-4f);
  p = fma(p, r, broadcast(1.3981999507e-3f));
  p = fma(p, r, broadcast(8.3334519073e-3f));
  p = fma(p, r, broadcast(4.1665795894e-2f));
  p = fma(p, r, broadcast(1.6666665459e-1f));
  p = fma(p, r, broadcast(5.0000001201e-1f));
  p = add(fma(p, mul(r, r), r), broadcast(1.0f));
  return zero_where_less(mul(p, power_of_two(n)), x, broadcast(-87.0f));
}

// Element formats of weights and KV; the numbers are those of `WeightFormat` and `KvFormat` in library.py.
enum Format { kFp32 = 0, kBf16 = 1, kFp16 = 2, kInt8 = 3 };

struct Fp32 {
  using Type = float;
  static Vec widen(const float* p) { return load(p); }
};
struct Bf16 {
  using Type = uint16_t;
  static Vec widen(const uint16_t* p) { return load_bf16(p); }
};
struct Fp16 {
  using Type = uint16_t;
  static Vec widen(const uint16_t* p) { return load_fp16(p); }
};
struct Int8 {  // KV only: a row's values are multiples of its scale
  using Type = int8_t;
  static Vec widen(const int8_t* p) { return load_int8(p); }
};

// Calls `f` with the element type that `format`, one of floats, names.
template <class F>
inline void with_format(int format, F f) {
  switch (format) {
    case kBf16:
      return f(Bf16{});
    case kFp16:
      return f(Fp16{});
    default:
      return f(Fp32{});
  }
}

}  // namespace pando
