// Vectors of W floats as compiler extensions, so that one source supports AVX-512, AVX2, SSE and NEON.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace flare {

#if defined(__AVX512F__)
constexpr int W = 16;
#elif defined(__AVX__)
constexpr int W = 8;
#else
constexpr int W = 4;
#endif

typedef float Vec __attribute__((vector_size(4 * W)));
typedef int32_t Bits __attribute__((vector_size(4 * W)));
typedef uint32_t Word __attribute__((vector_size(4 * W)));

#define FLARE_INLINE inline __attribute__((always_inline))
#define FLARE_UNROLL _Pragma("GCC unroll 16")

constexpr float kLog2e = 1.44269504088896340736f;
constexpr float kLn2 = 0.69314718055994530942f;

FLARE_INLINE Vec load(const float* p) { return *reinterpret_cast<const Vec*>(p); }
FLARE_INLINE void store(float* p, Vec v) { *reinterpret_cast<Vec*>(p) = v; }

// Prefetches a cache line; the address may be beyond the end of an array.
FLARE_INLINE void prefetch(const float* p) { __builtin_prefetch(p); }

// Unaligned load and store.
FLARE_INLINE Vec load_any(const float* p) {
  Vec v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
FLARE_INLINE void store_any(float* p, Vec v) { std::memcpy(p, &v, sizeof v); }

FLARE_INLINE Vec splat(float x) { return x - Vec{}; }
// Maximum and minimum; both return b if a is NaN.
FLARE_INLINE Vec larger(Vec a, Vec b) { return a > b ? a : b; }
FLARE_INLINE Vec smaller(Vec a, Vec b) { return a < b ? a : b; }

FLARE_INLINE float lane_max(Vec v) {
  float s = v[0];
  FLARE_UNROLL
  for (int i = 1; i < W; i++) s = v[i] > s || v[i] != v[i] ? v[i] : s;  // NaN propagates
  return s;
}

// Returns 2^f for f in [-1/2, 1/2] with an error of 1e-7: the best polynomial of degree 5 that is 1 at 0.
FLARE_INLINE Vec exp2_fraction(Vec f) {
  Vec p = splat(1.32746334e-3f);
  p = p * f + 9.67196168e-3f;
  p = p * f + 5.55067837e-2f;
  p = p * f + 2.40222353e-1f;
  p = p * f + 6.93147062e-1f;
  return p * f + 1.0f;
}

// Returns 2^x for |x| <= 125, which includes the scores of bounded tiles.
FLARE_INLINE Vec exp2_bounded(Vec x) {
  const float big = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer in the lowest bits
  Vec shifted = x + big;
  Vec p = exp2_fraction(x - (shifted - big));
  return (Vec)((Word)p + ((Word)shifted << 23));
}

// Returns 2^x for any x: 0 or infinity beyond the range of floats; NaN for NaN.
FLARE_INLINE Vec exp2_any(Vec x) {
#if defined(__AVX512F__)
  __m512 n = _mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  return (Vec)_mm512_scalef_ps((__m512)exp2_fraction(x - (Vec)n), n);
#else
  Vec inside = x < -125.0f ? splat(-125.0f) : x;
  Vec power = exp2_bounded(inside > 125.0f ? splat(125.0f) : inside);
  power = x < -125.0f ? Vec{} : power;
  power = x > 125.0f ? splat(__builtin_inff()) : power;
  return x == x ? power : x;
#endif
}

// Returns log2(x) for normal x > 0; infinity and NaN are returned as they are.
FLARE_INLINE Vec log2_of(Vec x) {
  const int32_t root_half = 0x3f3504f3;
  Bits offset = (Bits)x - root_half;
  Bits exponent = offset >> 23;
  Vec m = (Vec)((offset & 0x007fffff) + root_half);  // x / 2^exponent, in [sqrt(1/2), sqrt(2))
  Vec r = (m - 1.0f) / (m + 1.0f), r2 = r * r;       // log2(m) = 2/ln2 * atanh(r)
  Vec p = splat(0.3205989f);
  p = p * r2 + 0.41219858f;
  p = p * r2 + 0.57707802f;
  p = p * r2 + 0.96179669f;
  p = p * r2 + 2.88539008f;
  return x < __builtin_inff() ? __builtin_convertvector(exponent, Vec) + p * r : x;
}

// Returns 1 / x for x >= 1, accurate to a bit or two, in half the time of a division; 0 for infinity, NaN for NaN.
FLARE_INLINE Vec reciprocal(Vec x) {
#if defined(__AVX512F__)
  Vec r = (Vec)_mm512_rcp14_ps((__m512)x);
  Vec finite = (Vec)_mm512_min_ps((__m512)splat(3e38f), (__m512)x);  // infinity times zero would be NaN
  return r + r * (1.0f - finite * r);
#else
  return 1.0f / x;
#endif
}

// Selects lanes of a and b by constant index: i < W from a, else from b.
#if defined(__clang__)
template <int S, bool High, size_t... L>
FLARE_INLINE Vec exchange(Vec a, Vec b, std::index_sequence<L...>) {
  return __builtin_shufflevector(a, b, ((L & S) ? (High ? L + W : L - S + W) : (High ? L + S : L))...);
}
#endif

template <int S>
FLARE_INLINE void exchange_rows(Vec& a, Vec& b) {
#if defined(__clang__)
  Vec low = exchange<S, false>(a, b, std::make_index_sequence<W>{});
  Vec high = exchange<S, true>(a, b, std::make_index_sequence<W>{});
#else
  Bits from_low, from_high;
  FLARE_UNROLL
  for (int l = 0; l < W; l++) {
    from_low[l] = (l & S) ? l - S + W : l;
    from_high[l] = (l & S) ? l + W : l + S;
  }
  Vec low = __builtin_shuffle(a, b, from_low), high = __builtin_shuffle(a, b, from_high);
#endif
  a = low;
  b = high;
}

template <int S>
FLARE_INLINE void exchange_all(Vec (&row)[W]) {
  FLARE_UNROLL
  for (int i = 0; i < W; i++)
    if (!(i & S)) exchange_rows<S>(row[i], row[i + S]);
}

// Transposes W rows of W floats in log2(W) rounds of exchanges.
FLARE_INLINE void transpose_square(Vec (&row)[W]) {
  exchange_all<1>(row);
  exchange_all<2>(row);
  if constexpr (W > 4) exchange_all<4>(row);
  if constexpr (W > 8) exchange_all<8>(row);
}

}  // namespace flare
