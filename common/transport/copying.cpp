// Copies and receives bytes, and takes their checksum (XXH3, 64 bit, no seed) in the same pass: what is hashed is what
// was stored, and memory is read once. Only for spans of more than kShortest bytes: shorter ones are hashed in another
// way (https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md), and gain nothing.
//
// XXH3 folds blocks of 16 stripes of 64 bytes into eight lanes; what is behind the last whole block, at least one byte,
// is folded in at the end, and the last 64 bytes once more.
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace {

constexpr uint64_t kStripe = 64, kBlock = 16 * kStripe, kPiece = 256 * 1024, kStreamed = 256 * 1024;
constexpr uint64_t kPrime32[] = {0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D};
constexpr uint64_t kPrime64[] = {0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63,
                                 0x27D4EB2F165667C5};
constexpr uint64_t kMix = 0x165667919E3779F9;
constexpr uint8_t kSecret[] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};
constexpr uint64_t kSecretEnd = sizeof kSecret - kStripe;

constexpr uint64_t kStart[8] = {kPrime32[2], kPrime64[0], kPrime64[1], kPrime64[2],
                                kPrime64[3], kPrime32[1], kPrime64[4], kPrime32[0]};

enum class Store { kNone, kCached, kStreamed };  // streamed: past the caches, whose lines would have to be read first

inline uint64_t load(const uint8_t* p) {
  uint64_t value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

#if defined(__AVX2__)

struct Lanes {
  __m256i half[2];

  explicit Lanes(const uint64_t* state) { std::memcpy(half, state, sizeof half); }
  void save(uint64_t* state) const { std::memcpy(state, half, sizeof half); }

  template <Store kStore>
  void fold(uint8_t* to, const uint8_t* from, const uint8_t* secret) {
    for (int i = 0; i < 2; ++i) {
      const __m256i data = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from) + i);
      if constexpr (kStore == Store::kCached) _mm256_storeu_si256(reinterpret_cast<__m256i*>(to) + i, data);
      if constexpr (kStore == Store::kStreamed) _mm256_stream_si256(reinterpret_cast<__m256i*>(to) + i, data);
      const __m256i key = _mm256_xor_si256(data, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(secret) + i));
      const __m256i product = _mm256_mul_epu32(key, _mm256_srli_epi64(key, 32));
      const __m256i swapped = _mm256_shuffle_epi32(data, _MM_SHUFFLE(1, 0, 3, 2));
      half[i] = _mm256_add_epi64(half[i], _mm256_add_epi64(product, swapped));
    }
  }

  void scramble(const uint8_t* secret) {
    const __m256i prime = _mm256_set1_epi64x(kPrime32[0]);
    for (int i = 0; i < 2; ++i) {
      __m256i lane = _mm256_xor_si256(half[i], _mm256_srli_epi64(half[i], 47));
      lane = _mm256_xor_si256(lane, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(secret) + i));
      const __m256i high = _mm256_mul_epu32(_mm256_srli_epi64(lane, 32), prime);
      half[i] = _mm256_add_epi64(_mm256_mul_epu32(lane, prime), _mm256_slli_epi64(high, 32));
    }
  }
};

inline void fence() { _mm_sfence(); }
inline bool can_stream(const uint8_t* to) { return reinterpret_cast<uintptr_t>(to) % sizeof(__m256i) == 0; }

#else

struct Lanes {
  uint64_t lane[8];

  explicit Lanes(const uint64_t* state) { std::memcpy(lane, state, sizeof lane); }
  void save(uint64_t* state) const { std::memcpy(state, lane, sizeof lane); }

  template <Store kStore>
  void fold(uint8_t* to, const uint8_t* from, const uint8_t* secret) {
    uint64_t data[8];
    std::memcpy(data, from, sizeof data);
    if constexpr (kStore != Store::kNone) std::memcpy(to, data, sizeof data);
    for (int i = 0; i < 8; ++i) {
      const uint64_t key = data[i] ^ load(secret + 8 * i);
      lane[i ^ 1] += data[i];
      lane[i] += (key & 0xFFFFFFFF) * (key >> 32);
    }
  }

  void scramble(const uint8_t* secret) {
    for (int i = 0; i < 8; ++i) lane[i] = (lane[i] ^ (lane[i] >> 47) ^ load(secret + 8 * i)) * kPrime32[0];
  }
};

inline void fence() {}
inline bool can_stream(const uint8_t*) { return false; }

#endif

// Fold the whole blocks in [begin, end) into `state`, and store them.
template <Store kStore>
void fold_blocks(uint64_t* state, uint8_t* to, const uint8_t* from, uint64_t begin, uint64_t end) {
  Lanes lanes(state);
  for (uint64_t block = begin; block + kBlock <= end; block += kBlock) {
    for (uint64_t stripe = 0; stripe < kBlock / kStripe; ++stripe) {
      const uint64_t at = block + stripe * kStripe;
      __builtin_prefetch(from + at + kBlock / 2);
      lanes.fold<kStore>(to + at, from + at, kSecret + 8 * stripe);
    }
    lanes.scramble(kSecret + kSecretEnd);
  }
  lanes.save(state);
}

// Where the last whole block ends that is not the end of `length` bytes.
uint64_t blocks_end(uint64_t length) { return (length - 1) / kBlock * kBlock; }

inline uint64_t multiply_fold(uint64_t a, uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

// The checksum of `length` bytes whose blocks up to `blocks_end` are in `state`.
uint64_t finish(uint64_t* state, const uint8_t* data, uint64_t length) {
  Lanes lanes(state);
  const uint8_t* secret = kSecret;
  for (uint64_t at = blocks_end(length); at + kStripe < length; at += kStripe, secret += 8)
    lanes.fold<Store::kNone>(nullptr, data + at, secret);
  lanes.fold<Store::kNone>(nullptr, data + length - kStripe, kSecret + kSecretEnd - 7);
  lanes.save(state);
  uint64_t sum = length * kPrime64[0];
  for (int i = 0; i < 8; i += 2)
    sum += multiply_fold(state[i] ^ load(kSecret + 11 + 8 * i), state[i + 1] ^ load(kSecret + 19 + 8 * i));
  sum = (sum ^ (sum >> 37)) * kMix;
  return sum ^ (sum >> 32);
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

// Copy bytes [begin, end) of a span of `length` and fold them into `state`, which is set up where `begin` is 0.
// Pieces come in order; all but the last are whole blocks. Returns the checksum with the last piece, else 0.
EXPORT uint64_t pando_copy_hashed(uint64_t* state, uint8_t* to, const uint8_t* from, uint64_t begin, uint64_t end,
                                  uint64_t length) {
  if (begin == 0) std::memcpy(state, kStart, sizeof kStart);
  const uint64_t folded = std::min(end, blocks_end(length));
  if (length >= kStreamed && can_stream(to)) {
    fold_blocks<Store::kStreamed>(state, to, from, begin, folded);
    fence();
  } else {
    fold_blocks<Store::kCached>(state, to, from, begin, folded);
  }
  if (end < length) return 0;
  std::memcpy(to + folded, from + folded, length - folded);
  return finish(state, to, length);
}

// Fill `to` with `length` bytes from a blocking stream, each piece hashed while it is in the cache.
// Returns 0, an errno, or -1 if the stream has ended.
EXPORT int pando_receive_hashed(int fd, uint8_t* to, uint64_t length, uint64_t* sum) {
  uint64_t state[8];
  std::memcpy(state, kStart, sizeof kStart);
  uint64_t received = 0, folded = 0;
  while (received < length) {
    const ssize_t count = recv(fd, to + received, std::min(kPiece, length - received), MSG_WAITALL);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return count < 0 ? errno : -1;
    received += count;
    const uint64_t end = std::min(received / kBlock * kBlock, blocks_end(length));
    fold_blocks<Store::kNone>(state, to, to, folded, end);
    folded = end;
  }
  *sum = finish(state, to, length);
  return 0;
}
