// The mixer on one tile and one head: scores exist only for 64 tokens and a chunk of latents.
//
// Exponentials are powers of two; the queries are multiplied by scale * log2(e). If |q| |k| bounds the scores, the weights
// are 2^s without a shift, and one exponential serves both softmaxes. Otherwise encode and decode keep a running maximum
// (online softmax).
#pragma once

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "tile.h"

namespace flare {

constexpr Index kChunk = 64;       // latents per chunk
constexpr float kBounded = 40.0f;  // sums of millions of weights 2^40 do not overflow with values up to kLargest
constexpr float kLargest = 1e15f;

// Queries in the layouts that the loops read, made once per call. H heads, M latents, D head width; MP is M rounded up to
// whole vectors.
struct Queries {
  Index H, M, D, MP;
  float scale;
  Floats rows;     // [H][M][D], multiplied by scale * log2(e)
  Floats columns;  // [H][D][MP], the transpose
  Floats longest;  // [H], the largest |q|

  Queries(const float* q, Index heads, Index latents, Index width, float score_scale)
      : H(heads), M(latents), D(width), MP(round_up(latents, W)), scale(score_scale), rows(H * M * D),
        columns(H * D * MP), longest(H) {
    for (Index i = 0; i < H * M * D; i++) rows[i] = q[i] * (scale * kLog2e);
    for (Index h = 0; h < H; h++) {
      float* own = columns + h * D * MP;
      transpose(rows + h * M * D, D, M, D, own, MP);
      Vec most = {};
      for (Index m = 0; m < MP; m += W) {
        Vec square = {};
        for (Index d = 0; d < D; d++) square += load(own + d * MP + m) * load(own + d * MP + m);
        most = square <= most ? most : square;  // NaN propagates
      }
      longest[h] = std::sqrt(lane_max(most));
    }
  }

  // Returns an upper bound of the scores of a tile. k is [D][T].
  float bound(Index h, const float* k, const Tokens& tokens) const {
    Vec longest_key = {};
    for (Index c = 0; c < tokens.columns; c += W) {
      Vec square = {};
      for (Index d = 0; d < D; d++) square += load(k + d * T + c) * load(k + d * T + c);
      longest_key = square <= longest_key ? longest_key : square;
    }
    return std::sqrt(lane_max(longest_key)) * longest[h];
  }
};

// Calls body(4) or body(8) for the head widths of the paper, so that their loops have a fixed length; else body(0).
template <class Body>
void with_fixed_width(Index D, Body body) {
  if (D == 4) return body(std::integral_constant<int, 4>{});
  if (D == 8) return body(std::integral_constant<int, 8>{});
  return body(std::integral_constant<int, 0>{});
}
template <int Width>
FLARE_INLINE Index width_of(const Queries& q) { return Width ? Width : q.D; }

// Returns the largest |x| of a tile [rows][T], or NaN if there is one.
inline float largest(const float* x, Index rows, Index columns) {
  Vec most = {};
  for (Index r = 0; r < rows; r++)
    for (Index c = 0; c < columns; c += W) {
      Vec v = load(x + r * T + c), size = v < 0.0f ? -v : v;
      most = size <= most ? most : size;
    }
  return lane_max(most);
}

inline bool is_bounded(float bound) { return bound <= kBounded; }

// ---- encode: lanes are latents --------------------------------------------------------------------------------

// Running sums of one head over tokens n: sum_n 2^(s - shift) v_n and sum_n 2^(s - shift).
struct EncodeSums {
  float* values;  // [D][MP]
  float* sums;    // [MP]
  float* shift;   // [MP]
};

// Computes power(score) of all tokens and the latents from m on, [n][kChunk].
template <int Width, class Power>
FLARE_INLINE void token_rows(const Queries& q, Index h, Index m, Index count, const float* k, Index n, float* powers,
                             Power power) {
  const Index D = width_of<Width>(q);
  product(n, D, {k, 1, T}, q.columns + h * D * q.MP + m, q.MP, count,
          [&](Index t, Index c, Vec s) { store(powers + t * kChunk + c, power(t, s)); });
}

// Raises the shift of the sums to the largest score of the tile and replaces the scores by 2^(score - shift).
inline void rescale(const Queries& q, const Tokens& tokens, Index m, Index count, EncodeSums g, float* scores) {
  for (Index c = 0; c < count; c += W) {
    Vec largest = splat(-3e38f);
    for (Index t = 0; t < tokens.n; t++)
      if (tokens.real[t] != 0.0f) largest = larger(load(scores + t * kChunk + c), largest);
    Vec sums = load(g.sums + m + c), old = load(g.shift + m + c);
    Vec shift = sums > 0.0f ? larger(old, largest) : largest;
    Vec factor = exp2_any(smaller(old - shift, Vec{}));
    store(g.sums + m + c, sums * factor);
    store(g.shift + m + c, shift);
    for (Index d = 0; d < q.D; d++) {
      float* p = g.values + d * q.MP + m + c;
      store(p, load(p) * factor);
    }
    for (Index t = 0; t < tokens.n; t++) {
      float* p = scores + t * kChunk + c;
      store(p, exp2_any(load(p) - shift));
    }
  }
}

// Adds a tile to the sums of head h. k and v are [D][T], zero at padding. `powers` is scratch of T * kChunk.
template <int Width>
inline void encode_tile(const Queries& q, Index h, const float* k, const float* v, const Tokens& tokens, bool bounded,
                        EncodeSums g, float* powers) {
  if (tokens.none_real) return;
  for (Index m = 0; m < q.M; m += kChunk) {
    Index count = std::min(kChunk, q.MP - m);
    if (bounded) {
      token_rows<Width>(q, h, m, count, k, tokens.n, powers, [](Index, Vec s) { return exp2_bounded(s); });
    } else {
      token_rows<Width>(q, h, m, count, k, tokens.n, powers, [](Index, Vec s) { return s; });
      rescale(q, tokens, m, count, g, powers);
    }
    if (!tokens.all_real)
      for (Index t = 0; t < tokens.n; t++)
        if (tokens.real[t] == 0.0f) std::memset(powers + t * kChunk, 0, sizeof(float) * kChunk);
    product_and_sum(
        width_of<Width>(q), tokens.n, {v, T, 1}, powers, kChunk, count,
        [&](Index d, Index c, Vec s) {
          float* p = g.values + d * q.MP + m + c;
          store(p, load(p) + s);
        },
        [&](Index c, Vec s) { store(g.sums + m + c, load(g.sums + m + c) + s); });
  }
}

// ---- decode: lanes are tokens ---------------------------------------------------------------------------------

// Computes power(score) of the latents from m on and all tokens, [count][T].
template <int Width, class Power>
FLARE_INLINE void latent_rows(const Queries& q, Index h, Index m, Index count, const float* k, Index columns, float* powers,
                              Power power) {
  const Index D = width_of<Width>(q);
  product(count, D, {q.rows + (h * q.M + m) * D, D, 1}, k, T, columns,
          [&](Index r, Index c, Vec s) { store(powers + r * T + c, power(r, c, s)); });
}

// Computes y [D][T], the softmax over the latents times z [M][D], zero at padding, and log2 of the sums [T].
template <int Width>
inline void decode_tile(const Queries& q, Index h, const float* k, const float* z, const Tokens& tokens, bool bounded,
                        float* y, float* log_sums, float* powers) {
  alignas(64) float sums[T], shift[T];
  for (Index c = 0; c < tokens.columns; c += W) {
    store(sums + c, Vec{});
    store(shift + c, Vec{});
    for (Index d = 0; d < q.D; d++) store(y + d * T + c, Vec{});
  }
  for (Index m = 0; m < q.M; m += kChunk) {
    Index count = std::min(kChunk, q.M - m);
    if (bounded) {
      latent_rows<Width>(q, h, m, count, k, tokens.columns, powers, [](Index, Index, Vec s) { return exp2_bounded(s); });
    } else {
      latent_rows<Width>(q, h, m, count, k, tokens.columns, powers, [](Index, Index, Vec s) { return s; });
      for (Index c = 0; c < tokens.columns; c += W) {
        Vec largest = load(powers + c), old = load(shift + c);
        for (Index r = 1; r < count; r++) largest = larger(load(powers + r * T + c), largest);
        if (m > 0) largest = larger(old, largest);
        Vec factor = exp2_any(smaller(old - largest, Vec{}));
        store(shift + c, largest);
        store(sums + c, load(sums + c) * factor);
        for (Index d = 0; d < q.D; d++) store(y + d * T + c, load(y + d * T + c) * factor);
        for (Index r = 0; r < count; r++) {
          float* p = powers + r * T + c;
          store(p, exp2_any(load(p) - largest));
        }
      }
    }
    product_and_sum(
        width_of<Width>(q), count, {z + m * q.D, 1, q.D}, powers, T, tokens.columns,
        [&](Index d, Index c, Vec s) { store(y + d * T + c, load(y + d * T + c) + s); },
        [&](Index c, Vec s) { store(sums + c, load(sums + c) + s); });
  }
  for (Index c = 0; c < tokens.columns; c += W) {
    Vec inverse = 1.0f / load(sums + c);
    for (Index d = 0; d < q.D; d++) store(y + d * T + c, load(y + d * T + c) * inverse);
    store(log_sums + c, load(shift + c) + log2_of(load(sums + c)));
  }
  for (Index c = tokens.columns; c < T; c += W) store(log_sums + c, Vec{});
  tokens.clear_padding(y, q.D);
}

// ---- backward -------------------------------------------------------------------------------------------------

// Returns the softmax weight 2^(s - log_sum), at most 1. The limit matters only for padded tokens, which have no sum.
FLARE_INLINE Vec weight_of(Vec s, Vec log_sum) {
  Vec x = s - log_sum;
  return exp2_any(x > 1.0f ? splat(1.0f) : x);  // in this form NaN propagates
}

// Adds the sum over tokens of the decode weights times dy to dz [D][MP] of head h.
template <int Width>
inline void latent_gradient_tile(const Queries& q, Index h, const float* k, const float* dy, const float* log_sums,
                                 const Tokens& tokens, bool bounded, float* dz, float* scaled, float* powers) {
  if (tokens.none_real) return;
  if (bounded) {
    for (Index c = 0; c < tokens.columns; c += W) {
      Vec inverse = exp2_any(-load(log_sums + c));
      for (Index d = 0; d < q.D; d++) store(scaled + d * T + c, load(dy + d * T + c) * inverse);
    }
    dy = scaled;
  }
  for (Index m = 0; m < q.M; m += kChunk) {
    Index count = std::min(kChunk, q.MP - m);
    if (bounded)
      token_rows<Width>(q, h, m, count, k, tokens.n, powers, [](Index, Vec s) { return exp2_bounded(s); });
    else
      token_rows<Width>(q, h, m, count, k, tokens.n, powers, [&](Index t, Vec s) { return weight_of(s, splat(log_sums[t])); });
    product(q.D, tokens.n, {dy, T, 1}, powers, kChunk, count, [&](Index d, Index c, Vec s) {
      float* p = dz + d * q.MP + m + c;
      store(p, load(p) + s);
    });
  }
}

// The gradient of a score is an inner product of a latent row [dz, -dz·z | z, 1] and a token row [v, 1 | dy, -dy·y], of
// 2 (D + 1) numbers each. The first half belongs to the encode, the second to the decode. In a bounded head, each half is
// divided by its softmax sum.
inline Index partner_width(Index D) { return 2 * (D + 1); }

inline void prepare_latents(Index M, Index D, const float* z, const float* dz, const float* log_sums, bool bounded,
                            float* partners) {
  for (Index m = 0; m < M; m++, partners += partner_width(D), z += D) {
    float share = bounded && log_sums ? std::exp2(-log_sums[m]) : 1.0f;
    float along = 0;
    for (Index d = 0; d < D; d++) {
      partners[d] = dz ? dz[m * D + d] * share : 0.0f;
      along += partners[d] * z[d];
      partners[D + 1 + d] = z[d];
    }
    partners[D] = -along;
    partners[2 * D + 1] = 1.0f;
  }
}

struct BackwardScratch {
  Floats powers{kChunk * T}, ds{kChunk * T}, flipped{T * kChunk}, tokens;
  explicit BackwardScratch(Index D) : tokens(partner_width(D) * T) {}
};

// Arguments of the backward of one head and tile. `encoded` and `decoded` say which halves of the mixer it includes.
struct HeadGradient {
  const float *k, *v, *y, *dy;        // [D][T], zero at padding; v for the encode, y and dy for the decode
  const float *log_sums, *enc_log_sums;  // of the decode [T], of the encode [M]
  const float* partners;              // [M][2 (D + 1)]
  bool encoded, decoded, bounded;
  float *dk, *dv;                     // outputs, [D][T]
  float* dq;                          // accumulates, [D][MP], without the factor `scale`
};

template <int Width>
inline void backward_tile(const Queries& q, Index h, const Tokens& tokens, const HeadGradient& g, BackwardScratch& s) {
  const Index D = width_of<Width>(q), P = partner_width(D), columns = tokens.columns;
  float *mine = s.tokens, *powers = s.powers, *ds = s.ds;
  for (Index c = 0; c < columns; c += W) {
    if (g.encoded) {
      for (Index d = 0; d < D; d++) store(mine + d * T + c, load(g.v + d * T + c));
      store(mine + D * T + c, splat(1.0f));
    }
    if (g.decoded) {
      Vec share = g.bounded ? exp2_any(-load(g.log_sums + c)) : splat(1.0f), along = {};
      for (Index d = 0; d < D; d++) {
        Vec dy = load(g.dy + d * T + c) * share;
        store(mine + (D + 1 + d) * T + c, dy);
        along -= dy * load(g.y + d * T + c);
      }
      store(mine + (2 * D + 1) * T + c, along);
    }
    for (Index d = 0; d < D; d++) {
      store(g.dk + d * T + c, Vec{});
      if (g.encoded) store(g.dv + d * T + c, Vec{});
    }
  }
  const Index first = g.encoded ? 0 : D + 1, width = g.encoded && g.decoded ? P : D + 1;
  for (Index m = 0; m < q.M; m += kChunk) {
    const Index count = std::min(kChunk, q.M - m);
    const float* partners = g.partners + m * P;
    auto add_dv = [&] {
      product(D, count, {partners, 1, P}, powers, T, columns,
              [&](Index d, Index c, Vec sum) { store(g.dv + d * T + c, load(g.dv + d * T + c) + sum); });
    };
    if (g.bounded) {
      latent_rows<Width>(q, h, m, count, g.k, columns, powers, [](Index, Index, Vec x) { return exp2_bounded(x); });
      product(count, width, {partners + first, P, 1}, mine + first * T, T, columns,
              [&](Index r, Index c, Vec sum) { store(ds + r * T + c, sum * load(powers + r * T + c)); });
      if (g.encoded) add_dv();
    } else {
      if (g.encoded) {
        latent_rows<Width>(q, h, m, count, g.k, columns, powers,
                    [&](Index r, Index, Vec x) { return weight_of(x, splat(g.enc_log_sums[m + r])); });
        product(count, D + 1, {partners, P, 1}, mine, T, columns,
                [&](Index r, Index c, Vec sum) { store(ds + r * T + c, sum * load(powers + r * T + c)); });
        add_dv();
      }
      if (g.decoded) {
        latent_rows<Width>(q, h, m, count, g.k, columns, powers,
                    [&](Index, Index c, Vec x) { return weight_of(x, load(g.log_sums + c)); });
        bool add = g.encoded;
        product(count, D + 1, {partners + D + 1, P, 1}, mine + (D + 1) * T, T, columns, [&](Index r, Index c, Vec sum) {
          Vec before = add ? load(ds + r * T + c) : Vec{};
          store(ds + r * T + c, before + sum * load(powers + r * T + c));
        });
      }
    }
    product(D, count, {q.rows + (h * q.M + m) * D, 1, D}, ds, T, columns,
            [&](Index d, Index c, Vec sum) { store(g.dk + d * T + c, load(g.dk + d * T + c) + sum * kLn2); });
    transpose(ds, T, count, columns, s.flipped, kChunk);
    product(D, tokens.n, {g.k, T, 1}, s.flipped, kChunk, round_up(count, W), [&](Index d, Index c, Vec sum) {
      float* p = g.dq + d * q.MP + m + c;
      store(p, load(p) + sum);
    });
  }
  tokens.clear_padding(g.dk, D);
  if (g.encoded) tokens.clear_padding(g.dv, D);
}

}  // namespace flare
