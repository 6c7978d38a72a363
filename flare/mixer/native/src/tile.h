// A tile is 64 tokens, stored by channel, [rows][64], so that vector lanes are tokens and any number of channels fits.
#pragma once

#include <memory>
#include <new>

#include "vector.h"

namespace flare {

using Index = int64_t;

constexpr int T = 64;

constexpr Index round_up(Index n, Index unit) { return (n + unit - 1) / unit * unit; }

// Aligned, uninitialized array with room for one vector behind its end, which the last vector may overlap.
class Floats {
 public:
  Floats() = default;
  explicit Floats(Index count) : data_(new (std::align_val_t(64)) float[count + W]) {}
  static Floats zeros(Index count) {
    Floats made(count);
    std::memset(made.get(), 0, sizeof(float) * (count + W));
    return made;
  }
  float* get() const { return data_.get(); }
  operator float*() const { return get(); }

 private:
  struct Free {
    void operator()(float* p) const { ::operator delete[](p, std::align_val_t(64)); }
  };
  std::unique_ptr<float[], Free> data_;
};

// ---- products -------------------------------------------------------------------------------------------------

// Left factor of a product: element (r, k) is p[r * row + k * step], broadcast to all lanes.
struct Scalars {
  const float* p;
  Index row, step;
};

// Computes R rows and V vectors of columns in registers, starting from start(r). With Sum, also sums x over its rows.
template <int R, int V, bool Sum, class Start, class Finish, class FinishSum>
FLARE_INLINE void product_block(Index depth, Scalars a, const float* x, Index ldx, Start start, Finish finish,
                                FinishSum finish_sum) {
  Vec acc[R][V], sum[V] = {};
  FLARE_UNROLL
  for (int r = 0; r < R; r++) {
    FLARE_UNROLL
    for (int v = 0; v < V; v++) acc[r][v] = splat(start(r));
  }
  const float* p = a.p;
  for (Index k = 0; k < depth; k++) {
    Vec column[V];
    FLARE_UNROLL
    for (int v = 0; v < V; v++) column[v] = load(x + v * W);
    FLARE_UNROLL
    for (int r = 0; r < R; r++) {
      Vec s = splat(p[r * a.row]);
      FLARE_UNROLL
      for (int v = 0; v < V; v++) acc[r][v] += s * column[v];
    }
    if constexpr (Sum) {
      FLARE_UNROLL
      for (int v = 0; v < V; v++) sum[v] += column[v];
    }
    p += a.step;
    x += ldx;
  }
  FLARE_UNROLL
  for (int r = 0; r < R; r++) {
    FLARE_UNROLL
    for (int v = 0; v < V; v++) finish(r, v * W, acc[r][v]);
  }
  if constexpr (Sum) {
    FLARE_UNROLL
    for (int v = 0; v < V; v++) finish_sum(v * W, sum[v]);
  }
}

template <int V, bool Sum, class Start, class Finish, class FinishSum>
FLARE_INLINE void product_columns(Index rows, Index depth, Scalars a, const float* x, Index ldx, Start start, Finish finish,
                                  FinishSum finish_sum) {
  Index r = 0;
  auto begin = [&](int i) { return start(r + i); };
  auto end = [&](int i, int c, Vec s) { finish(r + i, c, s); };
  auto at = [&] { return Scalars{a.p + r * a.row, a.row, a.step}; };
  if constexpr (Sum) {  // sums are computed with the first rows; registers then suffice for four
    if (rows >= 4) product_block<4, V, true>(depth, at(), x, ldx, begin, end, finish_sum), r = 4;
    else product_block<1, V, true>(depth, at(), x, ldx, begin, end, finish_sum), r = 1;
  }
  for (; r + 6 <= rows; r += 6) product_block<6, V, false>(depth, at(), x, ldx, begin, end, finish_sum);
  for (; r + 4 <= rows; r += 4) product_block<4, V, false>(depth, at(), x, ldx, begin, end, finish_sum);
  for (; r + 2 <= rows; r += 2) product_block<2, V, false>(depth, at(), x, ldx, begin, end, finish_sum);
  for (; r < rows; r++) product_block<1, V, false>(depth, at(), x, ldx, begin, end, finish_sum);
}

template <bool Sum, class Start, class Finish, class FinishSum>
FLARE_INLINE void product_tile(Index rows, Index depth, Scalars a, const float* x, Index ldx, Index columns, Start start,
                               Finish finish, FinishSum finish_sum) {
  constexpr int V = W == 8 ? 2 : 4;  // AVX2 has half the registers
  Index c = 0;
  auto end = [&](Index r, int i, Vec s) { finish(r, c + i, s); };
  auto end_sum = [&](int i, Vec s) { finish_sum(c + i, s); };
  for (; c + V * W <= columns; c += V * W) product_columns<V, Sum>(rows, depth, a, x + c, ldx, start, end, end_sum);
  for (; c < columns; c += W) product_columns<1, Sum>(rows, depth, a, x + c, ldx, start, end, end_sum);
}

struct FromZero {
  FLARE_INLINE float operator()(Index) const { return 0.0f; }
};
struct NoSum {
  FLARE_INLINE void operator()(Index, Vec) const {}
};

// Calls finish(r, c, start(r) + sum over k of a(r, k) * x[k][c ... c + W - 1]) for all rows, and columns in steps of W.
template <class Start, class Finish>
FLARE_INLINE void product_from(Start start, Index rows, Index depth, Scalars a, const float* x, Index ldx, Index columns,
                               Finish finish) {
  product_tile<false>(rows, depth, a, x, ldx, columns, start, finish, NoSum{});
}

template <class Finish>
FLARE_INLINE void product(Index rows, Index depth, Scalars a, const float* x, Index ldx, Index columns, Finish finish) {
  product_tile<false>(rows, depth, a, x, ldx, columns, FromZero{}, finish, NoSum{});
}

// Also calls finish_sum(c, sum over k of x[k][c ...]).
template <class Finish, class FinishSum>
FLARE_INLINE void product_and_sum(Index rows, Index depth, Scalars a, const float* x, Index ldx, Index columns,
                                  Finish finish, FinishSum finish_sum) {
  product_tile<true>(rows, depth, a, x, ldx, columns, FromZero{}, finish, finish_sum);
}

// ---- transposes -----------------------------------------------------------------------------------------------

// Sets b[c][r] = a[r][c] at any alignment. Rows of b are filled with zeros up to a multiple of W.
inline void transpose(const float* a, Index lda, Index rows, Index columns, float* b, Index ldb) {
  for (Index r = 0; r < rows; r += W)
    for (Index c = 0; c < columns; c += W) {
      Vec square[W];
      FLARE_UNROLL
      for (int i = 0; i < W; i++) square[i] = r + i < rows ? load_any(a + (r + i) * lda + c) : Vec{};
      transpose_square(square);
      FLARE_UNROLL
      for (int i = 0; i < W; i++)
        if (c + i < columns) store_any(b + (c + i) * ldb + r, square[i]);
    }
}

// Adds the sum over the columns of term(r, c) to sums[r], W rows at a time: a transpose is cheaper than sums across lanes.
// The last vector adds zeros to what follows the sums.
template <class Term>
FLARE_INLINE void add_row_sums(Index rows, Index columns, float* sums, Term term) {
  for (Index r = 0; r < rows; r += W) {
    Vec row[W] = {};
    for (int i = 0; i < W && r + i < rows; i++) {
      Vec sum = {};
      for (Index c = 0; c < columns; c += W) sum += term(r + i, c);
      row[i] = sum;
    }
    transpose_square(row);
    Vec total = row[0];
    FLARE_UNROLL
    for (int i = 1; i < W; i++) total += row[i];
    store_any(sums + r, load_any(sums + r) + total);
  }
}

// Copies rows of tokens to a tile, or back. Tokens from n on are zero in the tile. Rows that are not whole vectors are
// staged in `stage`, T padded rows.
inline void load_tokens(const float* x, Index token_stride, Index n, Index channels, float* stage, float* tile) {
  if (channels % W == 0) return transpose(x, token_stride, n, channels, tile, T);
  Index ld = round_up(channels, W);
  for (Index t = 0; t < n; t++) {
    store(stage + t * ld + ld - W, Vec{});
    std::memcpy(stage + t * ld, x + t * token_stride, sizeof(float) * channels);
  }
  transpose(stage, ld, n, channels, tile, T);
}

inline void store_tokens(const float* tile, Index n, Index channels, float* stage, float* y, Index token_stride) {
  if (channels % W == 0) return transpose(tile, T, channels, n, y, token_stride);
  Index ld = round_up(channels, W);
  transpose(tile, T, channels, round_up(n, W), stage, ld);
  for (Index t = 0; t < n; t++) std::memcpy(y + t * token_stride, stage + t * ld, sizeof(float) * channels);
}

// Clears the columns of a tile that no product fills, so that outputs have no uninitialized values.
inline void clear_from(Index column, float* tile, Index rows) {
  for (Index r = 0; r < rows; r++)
    for (Index c = column; c < T; c += W) store(tile + r * T + c, Vec{});
}

// Number of tokens in a tile, and which of them are real rather than padding.
struct Tokens {
  Index n, columns;           // columns: n rounded up to whole vectors
  bool all_real, none_real;  // of all T tokens
  alignas(64) float real[T];  // 1 for real tokens, else 0

  Tokens(Index count, const uint8_t* mask) : n(count), columns(round_up(count, W)) {
    Index kept = 0;
    for (Index t = 0; t < T; t++) {
      bool is_real = t < n && (mask == nullptr || mask[t]);
      real[t] = is_real ? 1.0f : 0.0f;
      kept += is_real;
    }
    all_real = kept == T;
    none_real = kept == 0;
  }

  void clear_padding(float* tile, Index rows) const {
    if (all_real) return;
    for (Index r = 0; r < rows; r++)
      for (Index c = 0; c < T; c += W) {
        float* p = tile + r * T + c;
        store(p, load(real + c) != 0.0f ? load(p) : Vec{});
      }
  }
};

}  // namespace flare
