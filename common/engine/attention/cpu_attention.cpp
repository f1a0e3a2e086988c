// Causal attention over the paged KV pool, exact: a query row's result depends on that row and its KV alone.
//
// A task is a few query tokens of one sequence times the heads that share one KV head. It walks the sequence's KV in
// tiles of kTile positions whose borders are absolute, in ascending order, with an fp32 running maximum and sum per
// row. Chunks, batches, block ids and threads decide which rows share a task, never what is computed for a row:
//   - scores and values go through `row_tile`, whose chains do not depend on the other rows;
//   - a position a row must not see gets the score -inf, hence the weight 0, and adding 0 changes nothing;
//   - positions beyond the sequence are never read.
#include <cstddef>
#include <limits>
#include <type_traits>
#include <vector>

#include "../kernels/gemm.h"

namespace pando {

struct PagedAttentionArgs {  // mirrored by library.py
  const float* q;            // rows of `row_stride`, heads contiguous; so are k and v
  const float* k;
  const float* v;
  float* out;  // [tokens, num_heads * head_dim]
  void* k_pool;
  void* v_pool;
  uint16_t* k_scales;  // bf16, of int8 pools only; so is v_scales
  uint16_t* v_scales;
  const int32_t* qo_indptr;
  const int32_t* kv_page_indptr;
  const int32_t* kv_page_indices;
  const int32_t* kv_lens;
  int64_t row_stride;    // elements
  int64_t block_stride;        // elements of the pool
  int64_t scale_block_stride;  // ditto of the scales
  int64_t num_sequences;
  int64_t block_size;
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_dim;
  float scale;
  int kv_format;
  int num_threads;
};

namespace {

constexpr int64_t kTile = 64;
constexpr int64_t kTaskRows = 48;              // query rows of a task: token rows times the heads of a group
constexpr int64_t kParallelPairs = 64 * 1024;  // head_dim-long products below which one thread is faster
constexpr int64_t kCacheLine = 64;
constexpr float kLargestInt8 = 127.0f;
constexpr uint16_t kBf16NaN = 0x7FC0;
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

uint16_t to_bf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  if (x != x) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

float widen_bf16(uint16_t half) {
  const uint32_t bits = static_cast<uint32_t>(half) << 16;
  float out;
  std::memcpy(&out, &bits, sizeof out);
  return out;
}

uint16_t to_fp16(float x) {
#if defined(__F16C__)
  return _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT);
#else
  const _Float16 half = static_cast<_Float16>(x);
  uint16_t bits;
  std::memcpy(&bits, &half, sizeof bits);
  return bits;
#endif
}

inline float narrow(Fp32, float x) { return x; }
inline uint16_t narrow(Bf16, float x) { return to_bf16(x); }
inline uint16_t narrow(Fp16, float x) { return to_fp16(x); }

// Largest magnitude in a row; not finite if any value is not. Magnitudes are ordered like their bits.
float largest_magnitude(const float* x, int64_t count) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    uint32_t bits;
    std::memcpy(&bits, x + i, sizeof bits);
    largest = std::max(largest, bits & 0x7FFFFFFF);
  }
  float out;
  std::memcpy(&out, &largest, sizeof out);
  return out;
}

// The largest power of two that divides `count`.
int64_t run_length(int64_t count) { return count & -count; }

// Walsh-Hadamard transform of a row, in runs; this and the next are the rule of quant.py, where it is explained.
void spread(float* x, int64_t count) {
  for (int64_t half = 1; half < run_length(count); half *= 2)
    for (int64_t first = 0; first < count; first += 2 * half)
      for (int64_t i = first; i < first + half; ++i) {
        const float low = x[i];
        const float high = x[i + half];
        x[i] = low + high;
        x[i + half] = low - high;
      }
}

// Writes a row's values and returns its scale.
uint16_t quantise_row(const float* x, int8_t* values, int64_t count) {
  const float largest = largest_magnitude(x, count);
  const bool is_finite = largest < std::numeric_limits<float>::infinity();
  const uint16_t scale = is_finite ? to_bf16(largest / kLargestInt8) : kBf16NaN;
  const float wide = widen_bf16(scale);
  for (int64_t i = 0; i < count; ++i) {
    const float steps = wide > 0.0f ? std::nearbyint(x[i] / wide) : 0.0f;
    values[i] = static_cast<int8_t>(std::min(kLargestInt8, std::max(-kLargestInt8, steps)));
  }
  return scale;
}

// Where a token's K and V are in the pool, in elements, and where its scales are.
struct Slot {
  int64_t values, scales;
};

Slot find_slot(const PagedAttentionArgs& args, const int32_t* pages, int64_t position) {
  const int64_t block = pages[position / args.block_size];
  const int64_t first_row = position % args.block_size * args.num_kv_heads;
  return {block * args.block_stride + first_row * args.head_dim, block * args.scale_block_stride + first_row};
}

// Writes the new K and V rows of token `row` of the step, one per head.
template <class Element>
void store_token(const PagedAttentionArgs& args, int64_t row, Slot slot) {
  using T = typename Element::Type;
  T* k = static_cast<T*>(args.k_pool) + slot.values;
  T* v = static_cast<T*>(args.v_pool) + slot.values;
  const int64_t base = row * args.row_stride;
  for (int64_t i = 0; i < args.num_kv_heads * args.head_dim; ++i) {
    k[i] = narrow(Element{}, args.k[base + i]);
    v[i] = narrow(Element{}, args.v[base + i]);
  }
}

template <>
void store_token<Int8>(const PagedAttentionArgs& args, int64_t row, Slot slot) {
  int8_t* k = static_cast<int8_t*>(args.k_pool) + slot.values;
  int8_t* v = static_cast<int8_t*>(args.v_pool) + slot.values;
  const int64_t dim = args.head_dim;
  std::vector<float> key(dim);
  for (int64_t h = 0; h < args.num_kv_heads; ++h) {
    const int64_t first = row * args.row_stride + h * dim;
    std::copy(args.k + first, args.k + first + dim, key.begin());
    spread(key.data(), dim);
    args.k_scales[slot.scales + h] = quantise_row(key.data(), k + h * dim, dim);
    args.v_scales[slot.scales + h] = quantise_row(args.v + first, v + h * dim, dim);
  }
}

// out[i] = in[i] widened, times `scale` if the format has one, for `count` elements.
template <class Element>
void widen_row(const typename Element::Type* in, float scale, float* out, int64_t count) {
  const auto widen = [scale](const typename Element::Type* p) {
    if constexpr (std::is_same_v<Element, Int8>) return mul(Element::widen(p), broadcast(scale));
    return Element::widen(p);
  };
  int64_t i = 0;
  for (; i + Vec::kLanes <= count; i += Vec::kLanes) store(out + i, widen(in + i));
  if (i == count) return;
  typename Element::Type tail[Vec::kLanes] = {};
  float wide[Vec::kLanes];
  std::memcpy(tail, in + i, static_cast<size_t>(count - i) * sizeof *in);
  store(wide, widen(tail));
  std::memcpy(out + i, wide, static_cast<size_t>(count - i) * sizeof *out);
}

// Buffers of one thread, reused by its tasks.
struct Scratch {
  int64_t width;              // head_dim rounded up to whole panels
  std::vector<float> q;       // [rows][head_dim], scaled
  std::vector<float> row;     // [kTile][width]: K of the tile
  std::vector<float> keys;    // [width][kTile]: K of the tile, transposed
  std::vector<float> values;  // [kTile][width]: V of the tile
  std::vector<float> weights; // [rows][kTile]: scores, then softmax numerators
  std::vector<float> out;     // [rows][width]
  std::vector<float> top;     // [rows]: running maximum
  std::vector<float> sum;     // [rows]: running sum

  Scratch(int64_t rows, int64_t head_dim)
      : width(round_up(head_dim, kPanel)),
        q(rows * head_dim),
        row(kTile * width),
        keys(width * kTile),
        values(kTile * width),
        weights(rows * kTile),
        out(rows * width),
        top(rows),
        sum(rows) {}
};

struct Task {
  int64_t sequence, kv_head, first_token, tokens;
};

class TaskRun {
 public:
  TaskRun(const PagedAttentionArgs& args, const Task& task, Scratch& scratch)
      : args_(args),
        scratch_(scratch),
        pages_(args.kv_page_indices + args.kv_page_indptr[task.sequence]),
        kv_head_(task.kv_head),
        group_(args.num_heads / args.num_kv_heads),
        first_row_(args.qo_indptr[task.sequence] + task.first_token),
        rows_(task.tokens * group_) {
    const int64_t new_tokens = args.qo_indptr[task.sequence + 1] - args.qo_indptr[task.sequence];
    first_position_ = args.kv_lens[task.sequence] - new_tokens + task.first_token;
    end_ = first_position_ + task.tokens;
  }

  template <class Element>
  void run() {
    find_tile<Element>(0);
    load_queries<Element>();
    for (int64_t begin = 0; begin < end_; begin += kTile) {
      const int64_t count = std::min(kTile, end_ - begin);
      load_tile<Element>(count);
      find_tile<Element>(begin + kTile);
      score(count);
      for (int64_t r = 0; r < rows_; ++r) soften(r, begin, count);
      weigh(count);
    }
    store_out();
  }

 private:
  // K of int8 pools is spread, so q is too; that makes their product run_length times as large.
  template <class Element>
  void load_queries() {
    constexpr bool kSpread = std::is_same_v<Element, Int8>;
    const int64_t dim = args_.head_dim;
    const float scale = kSpread ? args_.scale / static_cast<float>(run_length(dim)) : args_.scale;
    for (int64_t r = 0; r < rows_; ++r) {
      const float* q = args_.q + (first_row_ + r / group_) * args_.row_stride + (kv_head_ * group_ + r % group_) * dim;
      for (int64_t d = 0; d < dim; ++d) scratch_.q[r * dim + d] = q[d] * scale;
      if constexpr (kSpread) spread(&scratch_.q[r * dim], dim);
      scratch_.top[r] = kMinusInfinity;
      scratch_.sum[r] = 0.0f;
    }
    std::fill(scratch_.out.begin(), scratch_.out.begin() + rows_ * scratch_.width, 0.0f);
  }

  // Finds where the positions of the tile at `begin` are, and starts fetching them: they lie apart, so the hardware
  // does not see them coming.
  template <class Element>
  void find_tile(int64_t begin) {
    using T = typename Element::Type;
    const int64_t bytes = args_.head_dim * static_cast<int64_t>(sizeof(T));
    int64_t page = begin / args_.block_size;
    int64_t row = begin % args_.block_size * args_.num_kv_heads + kv_head_;
    for (int64_t j = 0; j < std::min(kTile, end_ - begin); ++j) {
      slots_[j] = {pages_[page] * args_.block_stride + row * args_.head_dim,
                   pages_[page] * args_.scale_block_stride + row};
      for (int64_t i = 0; i < bytes; i += kCacheLine) {
        __builtin_prefetch(reinterpret_cast<const char*>(static_cast<const T*>(args_.k_pool) + slots_[j].values) + i);
        __builtin_prefetch(reinterpret_cast<const char*>(static_cast<const T*>(args_.v_pool) + slots_[j].values) + i);
      }
      if constexpr (std::is_same_v<Element, Int8>) {
        __builtin_prefetch(args_.k_scales + slots_[j].scales);
        __builtin_prefetch(args_.v_scales + slots_[j].scales);
      }
      row += args_.num_kv_heads;
      if (row >= args_.block_size * args_.num_kv_heads) {
        row = kv_head_;
        ++page;
      }
    }
  }

  // Widens the K and V of the tile that `find_tile` found.
  template <class Element>
  void load_tile(int64_t count) {
    const int64_t dim = args_.head_dim;
    for (int64_t j = 0; j < count; ++j) {
      load_row<Element>(args_.k_pool, args_.k_scales, slots_[j], &scratch_.row[j * scratch_.width]);
      load_row<Element>(args_.v_pool, args_.v_scales, slots_[j], &scratch_.values[j * scratch_.width]);
    }
    // Columns of positions that were not loaded hold whatever was there; their scores are overwritten.
    for (int64_t j = 0; j < count; j += 8)
      for (int64_t d = 0; d < dim; d += 8)
        transpose8(&scratch_.row[j * scratch_.width + d], scratch_.width, &scratch_.keys[d * kTile + j], kTile);
  }

  template <class Element>
  void load_row(const void* pool, const uint16_t* scales, Slot slot, float* out) {
    const float scale = std::is_same_v<Element, Int8> ? widen_bf16(scales[slot.scales]) : 1.0f;
    widen_row<Element>(static_cast<const typename Element::Type*>(pool) + slot.values, scale, out, args_.head_dim);
  }

  void score(int64_t count) {
    const int64_t panels = round_up(count, kPanel) / kPanel;
    for_row_tiles(rows_, [&](int64_t first, int rows) {
      row_tile<Fp32, false>(rows, &scratch_.q[first * args_.head_dim], args_.head_dim, scratch_.keys.data(), kTile,
                            kPanel, panels, args_.head_dim, &scratch_.weights[first * kTile], kTile);
    });
  }

  // Turns the scores of row r into softmax numerators and rescales what the row has so far.
  void soften(int64_t r, int64_t begin, int64_t count) {
    float* scores = &scratch_.weights[r * kTile];
    const int64_t padded = round_up(count, Vec::kLanes);
    const int64_t visible = std::min(count, std::max<int64_t>(0, first_position_ + r / group_ + 1 - begin));
    for (int64_t j = visible; j < padded; ++j) scores[j] = kMinusInfinity;
    Vec best = broadcast(scratch_.top[r]);
    for (int64_t j = 0; j < padded; j += Vec::kLanes) best = max(best, load(scores + j));
    const float top = max_lanes(best);
    Vec sum = broadcast(0.0f);
    for (int64_t j = 0; j < padded; j += Vec::kLanes) {
      const Vec weight = exp(sub(load(scores + j), broadcast(top)));
      store(scores + j, weight);
      sum = add(sum, weight);
    }
    float lanes[Vec::kLanes];
    store(lanes, exp(broadcast(scratch_.top[r] - top)));
    const float keep = lanes[0];
    scratch_.sum[r] = scratch_.sum[r] * keep + sum_lanes(sum);
    scratch_.top[r] = top;
    float* out = &scratch_.out[r * scratch_.width];
    for (int64_t d = 0; d < scratch_.width; ++d) out[d] *= keep;
  }

  void weigh(int64_t count) {
    for_row_tiles(rows_, [&](int64_t first, int rows) {
      row_tile<Fp32, true>(rows, &scratch_.weights[first * kTile], kTile, scratch_.values.data(), scratch_.width,
                           kPanel, scratch_.width / kPanel, count, &scratch_.out[first * scratch_.width],
                           scratch_.width);
    });
  }

  void store_out() {
    const int64_t dim = args_.head_dim;
    for (int64_t r = 0; r < rows_; ++r) {
      float* out = args_.out + ((first_row_ + r / group_) * args_.num_heads + kv_head_ * group_ + r % group_) * dim;
      const float inverse = 1.0f / scratch_.sum[r];
      for (int64_t d = 0; d < dim; ++d) out[d] = scratch_.out[r * scratch_.width + d] * inverse;
    }
  }

  const PagedAttentionArgs& args_;
  Scratch& scratch_;
  const int32_t* pages_;
  int64_t kv_head_, group_, first_row_, rows_;
  int64_t first_position_, end_;
  Slot slots_[kTile];  // of the next tile's positions, at this task's head
};

// Tasks of the step, the longest ones (last tokens of a prompt) first within a sequence.
std::vector<Task> make_tasks(const PagedAttentionArgs& args, int64_t task_tokens) {
  std::vector<Task> tasks;
  for (int64_t s = 0; s < args.num_sequences; ++s) {
    const int64_t tokens = args.qo_indptr[s + 1] - args.qo_indptr[s];
    for (int64_t first = (tokens - 1) / task_tokens * task_tokens; first >= 0; first -= task_tokens)
      for (int64_t head = 0; head < args.num_kv_heads; ++head)
        tasks.push_back({s, head, first, std::min(task_tokens, tokens - first)});
  }
  return tasks;
}

int threads_for(const PagedAttentionArgs& args) {
  int64_t pairs = 0;
  for (int64_t s = 0; s < args.num_sequences; ++s)
    pairs += (args.qo_indptr[s + 1] - args.qo_indptr[s]) * args.kv_lens[s] * args.num_heads;
  return pairs * args.head_dim < kParallelPairs * 4 ? 1 : args.num_threads;
}

template <class Element>
void attend(const PagedAttentionArgs& args) {
  const int64_t group = args.num_heads / args.num_kv_heads;
  const int64_t task_tokens = std::max<int64_t>(1, kTaskRows / group);
  const std::vector<Task> tasks = make_tasks(args, task_tokens);
  const int64_t num_tasks = static_cast<int64_t>(tasks.size());
#pragma omp parallel num_threads(threads_for(args))
  {
#pragma omp for schedule(static)
    for (int64_t s = 0; s < args.num_sequences; ++s) {
      const int32_t* pages = args.kv_page_indices + args.kv_page_indptr[s];
      for (int64_t row = args.qo_indptr[s]; row < args.qo_indptr[s + 1]; ++row) {
        const int64_t position = args.kv_lens[s] - (args.qo_indptr[s + 1] - row);
        store_token<Element>(args, row, find_slot(args, pages, position));
      }
    }
    Scratch scratch(task_tokens * group, args.head_dim);
#pragma omp for schedule(dynamic)
    for (int64_t t = 0; t < num_tasks; ++t) TaskRun(args, tasks[t], scratch).template run<Element>();
  }
}

}  // namespace
}  // namespace pando

extern "C" __attribute__((visibility("default"))) void pando_paged_attention(const pando::PagedAttentionArgs* args) {
  if (args->kv_format == pando::kInt8) return pando::attend<pando::Int8>(*args);
  pando::with_format(args->kv_format, [&](auto element) { pando::attend<decltype(element)>(*args); });
}
