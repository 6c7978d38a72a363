// The mixer over all tiles: running sums for each thread, and their combination at the end.
#pragma once

#include <vector>

#include "attention.h"
#include "work.h"

namespace flare {

struct MixerSizes {
  Index threads, B, H, M, N, D;
  static MixerSizes from(const Index* s) { return {s[0], s[1], s[2], s[3], s[4], s[5]}; }
};

inline void keep_larger(float& kept, float value) {
  if (!(value <= kept)) kept = value;  // NaN propagates
}

inline const uint8_t* mask_at(const uint8_t* mask, Index sample, Index points, Index first) {
  return mask ? mask + sample * points + first : nullptr;
}

// Calls body(sample, head, sample * H + head) for all heads, in parallel.
template <class Body>
void for_heads(const Work& work, const Queries& q, Body body) {
  in_parallel(work.parts, [&](Index part) {
    for (Index i = part; i < work.batch * q.H; i += work.parts) body(i / q.H, i % q.H, i);
  });
}

// Computes Z, the softmax over the points times V.
class Encoder {
 public:
  Encoder(const Work& work, const Queries& q)
      : work_(work), q_(q), head_((q.D + 2) * q.MP), sums_(Floats::zeros(work.segments() * q.H * head_)),
        bounds_(Floats::zeros(work.segments() * q.H)), shifted_(work.segments() * q.H) {}

  // Adds tiles k and v, [H D][T], zero at padding.
  void add(Index part, Index sample, const float* k, const float* v, const Tokens& tokens, float* powers) {
    for (Index h = 0; h < q_.H; h++) {
      Index i = work_.segment(part, sample) * q_.H + h;
      const float* keys = k + h * q_.D * T;
      float bound = q_.bound(h, keys, tokens);
      if (!(largest(v + h * q_.D * T, q_.D, tokens.columns) < kLargest)) bound = __builtin_inff();
      keep_larger(bounds_[i], bound);
      if (!is_bounded(bound)) shifted_[i] = 1;  // from here on its sums have a shift
      with_fixed_width(q_.D, [&](auto width) {
        encode_tile<width>(q_, h, keys, v + h * q_.D * T, tokens, !shifted_[i], encode_sums(i), powers);
      });
    }
  }

  // Writes z [B][H][M][D], log_sums [B][H][M] to base 2 and bounds [B][H]; zeros for samples without a real point.
  void finish(float* z, float* log_sums, float* bounds) {
    for_heads(work_, q_, [&](Index sample, Index h, Index out) {
      bounds[out] = 0;
      for_parts(sample, h, [&](Index i) { keep_larger(bounds[out], bounds_[i]); });
      for (Index m = 0; m < q_.M; m += W) {
        Vec log_sum = merge(sample, h, m);
        for (Index lane = 0; lane < std::min<Index>(W, q_.M - m); lane++) {
          log_sums[out * q_.M + m + lane] = log_sum[lane];
          float* to = z + (out * q_.M + m + lane) * q_.D;
          for (Index d = 0; d < q_.D; d++) to[d] = 0;
          for_parts(sample, h, [&](Index i) {
            for (Index d = 0; d < q_.D; d++) to[d] += encode_sums(i).values[d * q_.MP + m + lane];
          });
        }
      }
    });
  }

 private:
  EncodeSums encode_sums(Index i) const {
    float* p = sums_ + i * head_;
    return {p, p + q_.D * q_.MP, p + (q_.D + 1) * q_.MP};
  }

  // Calls body(index of the head in the segment) for every part that has tiles of the sample.
  template <class Body>
  void for_parts(Index sample, Index h, Body body) const {
    for (Index part = 0; part < work_.parts; part++)
      if (work_.takes_part(part, sample)) body(work_.segment(part, sample) * q_.H + h);
  }

  // Brings the values of all parts to one shift and divides them by the total; returns the logarithm of the total.
  Vec merge(Index sample, Index h, Index m) {
    Vec shift = splat(-3e38f), total = {};
    auto used = [&](Index i, Vec yes, Vec no) { return load(encode_sums(i).sums + m) > 0.0f ? yes : no; };
    auto factor = [&](Index i) { return used(i, exp2_any(load(encode_sums(i).shift + m) - shift), Vec{}); };
    for_parts(sample, h, [&](Index i) { shift = used(i, larger(load(encode_sums(i).shift + m), shift), shift); });
    for_parts(sample, h, [&](Index i) { total += factor(i) * load(encode_sums(i).sums + m); });
    Vec inverse = total > 0.0f ? 1.0f / total : total * 0.0f;  // NaN propagates
    for_parts(sample, h, [&](Index i) {
      Vec share = factor(i) * inverse;
      for (Index d = 0; d < q_.D; d++) {
        float* p = encode_sums(i).values + d * q_.MP + m;
        store(p, load(p) * share);
      }
    });
    return total > 0.0f ? shift + log2_of(total) : total * 0.0f;
  }

  const Work& work_;
  const Queries& q_;
  Index head_;
  Floats sums_, bounds_;
  std::vector<uint8_t> shifted_;
};

// Computes Y, the softmax over the latents times Z, for all heads of a tile. z [H][M][D], bounds [H], log_sums [H][T],
// y [H D][T]
inline void decode_heads(const Queries& q, const float* k, const float* z, const Tokens& tokens, const float* bounds, float* y,
                         float* log_sums, float* powers) {
  for (Index h = 0; h < q.H; h++)
    with_fixed_width(q.D, [&](auto width) {
      decode_tile<width>(q, h, k + h * q.D * T, z + h * q.M * q.D, tokens, is_bounded(bounds[h]), y + h * q.D * T,
                         log_sums + h * T, powers);
    });
}

// Computes dZ, the transposed weights of the decode times dY.
class LatentGradient {
 public:
  LatentGradient(const Work& work, const Queries& q)
      : work_(work), q_(q), head_(q.D * q.MP), sums_(Floats::zeros(work.segments() * q.H * head_)) {}

  // Adds tiles k and dy, [H D][T], zero at padding; log_sums [H][T], bounds [B][H].
  void add(Index part, Index sample, const float* k, const float* dy, const float* log_sums, const float* bounds,
           const Tokens& tokens, float* scaled, float* powers) {
    for (Index h = 0; h < q_.H; h++)
      with_fixed_width(q_.D, [&](auto width) {
        latent_gradient_tile<width>(q_, h, k + h * q_.D * T, dy + h * q_.D * T, log_sums + h * T, tokens,
                                    is_bounded(bounds[sample * q_.H + h]),
                                    sums_ + (work_.segment(part, sample) * q_.H + h) * head_, scaled, powers);
      });
  }

  void finish(float* dz) const {  // [B][H][M][D]
    for_heads(work_, q_, [&](Index sample, Index h, Index out) {
      for (Index m = 0; m < q_.M; m++)
        for (Index d = 0; d < q_.D; d++) {
          float s = 0;
          for (Index part = 0; part < work_.parts; part++)
            if (work_.takes_part(part, sample))
              s += sums_[(work_.segment(part, sample) * q_.H + h) * head_ + d * q_.MP + m];
          dz[(out * q_.M + m) * q_.D + d] = s;
        }
    });
  }

 private:
  const Work& work_;
  const Queries& q_;
  Index head_;
  Floats sums_;
};

// Computes dQ, dK and dV from dZ.
class HeadGradients {
 public:
  // z and dz [B][H][M][D], log_sums [B][H][M]; dz and log_sums are null if there is no encode.
  HeadGradients(const Work& work, const Queries& q, const float* z, const float* dz, const float* log_sums,
                const float* bounds)
      : q_(q), log_sums_(log_sums), bounds_(bounds), row_(q.M * partner_width(q.D)), partners_(work.batch * q.H * row_),
        dq_(work.parts, q.H * q.D * q.MP) {
    for (Index i = 0; i < work.batch * q.H; i++)
      prepare_latents(q.M, q.D, z + i * q.M * q.D, dz ? dz + i * q.M * q.D : nullptr, log_sums ? log_sums + i * q.M : nullptr,
                      is_bounded(bounds[i]), partners_ + i * row_);
  }

  // Takes tiles [H D][T], zero at padding, and log_sums [H][T] of the decode. v is null without an encode, dy without a
  // decode.
  void add(Index part, Index sample, const float* k, const float* v, const float* y, const float* dy,
           const float* log_sums, const Tokens& tokens, float* dk, float* dv, BackwardScratch& scratch) {
    for (Index h = 0; h < q_.H; h++) {
      Index i = sample * q_.H + h, at = h * q_.D * T;
      HeadGradient g;
      g.encoded = v != nullptr;
      g.decoded = dy != nullptr;
      g.bounded = is_bounded(bounds_[i]);
      g.k = k + at;
      g.v = g.encoded ? v + at : nullptr;
      g.y = g.decoded ? y + at : nullptr;
      g.dy = g.decoded ? dy + at : nullptr;
      g.log_sums = g.decoded ? log_sums + h * T : nullptr;
      g.enc_log_sums = g.encoded ? log_sums_ + i * q_.M : nullptr;
      g.partners = partners_ + i * row_;
      g.dk = dk + at;
      g.dv = g.encoded ? dv + at : nullptr;
      g.dq = dq_[part] + h * q_.D * q_.MP;
      with_fixed_width(q_.D, [&](auto width) { backward_tile<width>(q_, h, tokens, g, scratch); });
    }
  }

  void finish(float* dq) const {  // [H][M][D]
    Floats total(q_.H * q_.D * q_.MP);
    dq_.total(total, q_.scale);
    for (Index h = 0; h < q_.H; h++)
      for (Index m = 0; m < q_.M; m++)
        for (Index d = 0; d < q_.D; d++) dq[(h * q_.M + m) * q_.D + d] = total[(h * q_.D + d) * q_.MP + m];
  }

 private:
  const Queries& q_;
  const float *log_sums_, *bounds_;
  Index row_;
  Floats partners_;
  PartSums dq_;
};

}  // namespace flare
