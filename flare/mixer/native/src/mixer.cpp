// Entry points of the mixer: encode, decode, and the backward of either or both.
// q [H][M][D], z [B][H][M][D]; k, v, y, dy [B, H, N, D] with strides of batch, head and token, and contiguous channels.

#include "mixer.h"

using namespace flare;

namespace {

struct PointTensor {
  const float* data;
  const Index* strides;  // batch, head, token

  // Loads all heads of some tokens as a tile [H D][T].
  void load(Index sample, Index first, Index n, Index H, Index D, float* stage, float* tile) const {
    const float* p = data + sample * strides[0] + first * strides[2];
    if (strides[1] == D) return load_tokens(p, strides[2], n, H * D, stage, tile);
    for (Index h = 0; h < H; h++) load_tokens(p + h * strides[1], strides[2], n, D, stage, tile + h * D * T);
  }
};

}  // namespace

extern "C" {

// sizes: threads, B, H, M, N, D
int flare_encode(const Index* sizes, float scale, const float* q_, const float* k_, const Index* k_strides, const float* v_,
                 const Index* v_strides, const uint8_t* mask, float* z, float* log_sums, float* bounds) {
  return guarded([&] {
    const MixerSizes given = MixerSizes::from(sizes);
    const Index B = given.B, H = given.H, M = given.M, N = given.N, D = given.D;
    const Index C = H * D;
    Queries q(q_, H, M, D, scale);
    Work work(B, N, given.threads);
    Encoder encoder(work, q);
    struct Scratch {
      Floats stage, k, v, powers{T * kChunk};
      explicit Scratch(Index C) : stage(T * round_up(C, W)), k(C * T), v(C * T) {}
    };
    auto scratch = for_each_part<Scratch>(work.parts, C);
    in_parallel(work.parts, [&](Index part) {
      Scratch& s = scratch[part];
      work.for_tiles(part, [&](Index sample, Index, Index first, Index n) {
        Tokens tokens(n, mask_at(mask, sample, N, first));
        PointTensor{k_, k_strides}.load(sample, first, n, H, D, s.stage, s.k);
        PointTensor{v_, v_strides}.load(sample, first, n, H, D, s.stage, s.v);
        tokens.clear_padding(s.k, C);
        tokens.clear_padding(s.v, C);
        encoder.add(part, sample, s.k, s.v, tokens, s.powers);
      });
    });
    encoder.finish(z, log_sums, bounds);
  });
}

// y [B][N][H][D], log_sums [B tiles][H][T]
int flare_decode(const Index* sizes, float scale, const float* q_, const float* k_, const Index* k_strides, const float* z,
                 const uint8_t* mask, float* y, float* log_sums, float* bounds) {
  return guarded([&] {
    const MixerSizes given = MixerSizes::from(sizes);
    const Index B = given.B, H = given.H, M = given.M, N = given.N, D = given.D;
    const Index C = H * D;
    Queries q(q_, H, M, D, scale);
    Work work(B, N, given.threads);
    struct Scratch {
      Floats stage, k, y, powers{T * kChunk}, tile_bounds, bounds;
      Scratch(Index C, Index B, Index H)
          : stage(T * round_up(C, W)), k(C * T), y(C * T), tile_bounds(H), bounds(Floats::zeros(B * H)) {}
    };
    auto scratch = for_each_part<Scratch>(work.parts, C, B, H);
    std::vector<bool> too_large(B * H);
    for (Index i = 0; i < B * H; i++)
      too_large[i] = std::any_of(z + i * M * D, z + (i + 1) * M * D, [](float x) { return !(std::fabs(x) < kLargest); });
    in_parallel(work.parts, [&](Index part) {
      Scratch& s = scratch[part];
      work.for_tiles(part, [&](Index sample, Index tile, Index first, Index n) {
        Tokens tokens(n, mask_at(mask, sample, N, first));
        PointTensor{k_, k_strides}.load(sample, first, n, H, D, s.stage, s.k);
        tokens.clear_padding(s.k, C);
        for (Index h = 0; h < H; h++) {
          s.tile_bounds[h] = too_large[sample * H + h] ? __builtin_inff() : q.bound(h, s.k + h * D * T, tokens);
          keep_larger(s.bounds[sample * H + h], s.tile_bounds[h]);
        }
        decode_heads(q, s.k, z + sample * H * M * D, tokens, s.tile_bounds, s.y, log_sums + tile * H * T, s.powers);
        store_tokens(s.y, n, C, s.stage, y + (sample * N + first) * C, C);
      });
    });
    for (Index i = 0; i < B * H; i++) {
      bounds[i] = 0;
      for (auto& s : scratch) keep_larger(bounds[i], s.bounds[i]);
    }
  });
}

// Computes the backward of the encode (v, dz_given), the decode (dy), or both. A null pointer omits that half.
//   enc_log_sums [B][H][M], y and dy as k, dec_log_sums [B tiles][H][T], bounds [B][H]
//   outputs: dz of the decode [B][H][M][D]; dk, dv [B][N][H][D]; dq [H][M][D]
int flare_mixer_backward(const Index* sizes, float scale, const float* q_, const float* k_, const Index* k_strides,
                         const float* v_, const Index* v_strides, const uint8_t* mask, const float* z,
                         const float* enc_log_sums, const float* y_, const Index* y_strides, const float* dy_,
                         const Index* dy_strides, const float* dec_log_sums, const float* bounds, const float* dz_given,
                         float* dq, float* dk, float* dv, float* dz) {
  return guarded([&] {
    const MixerSizes given = MixerSizes::from(sizes);
    const Index B = given.B, H = given.H, M = given.M, N = given.N, D = given.D;
    const Index C = H * D;
    Queries q(q_, H, M, D, scale);
    Work work(B, N, given.threads);
    const bool encoded = v_strides != nullptr, decoded = dy_strides != nullptr;  // an empty tensor has no address
    struct Scratch {
      Floats stage, k, v, y, dy, dk, dv, scaled;
      BackwardScratch head;
      Scratch(Index C, Index D)
          : stage(T * round_up(C, W)), k(C * T), v(C * T), y(C * T), dy(C * T), dk(C * T), dv(C * T), scaled(D * T), head(D) {}
    };
    auto scratch = for_each_part<Scratch>(work.parts, C, D);
    if (decoded) {
      LatentGradient gradient(work, q);
      in_parallel(work.parts, [&](Index part) {
        Scratch& s = scratch[part];
        work.for_tiles(part, [&](Index sample, Index tile, Index first, Index n) {
          Tokens tokens(n, mask_at(mask, sample, N, first));
          PointTensor{k_, k_strides}.load(sample, first, n, H, D, s.stage, s.k);
          PointTensor{dy_, dy_strides}.load(sample, first, n, H, D, s.stage, s.dy);
          tokens.clear_padding(s.k, C);
          tokens.clear_padding(s.dy, C);
          gradient.add(part, sample, s.k, s.dy, dec_log_sums + tile * H * T, bounds, tokens, s.scaled, s.head.powers);
        });
      });
      gradient.finish(dz);
    }
    HeadGradients gradients(work, q, z, encoded ? (decoded ? dz : dz_given) : nullptr, enc_log_sums, bounds);
    in_parallel(work.parts, [&](Index part) {
      Scratch& s = scratch[part];
      work.for_tiles(part, [&](Index sample, Index tile, Index first, Index n) {
        Tokens tokens(n, mask_at(mask, sample, N, first));
        auto bring = [&](PointTensor x, float* to) {
          x.load(sample, first, n, H, D, s.stage, to);
          tokens.clear_padding(to, C);
        };
        bring({k_, k_strides}, s.k);
        if (encoded) bring({v_, v_strides}, s.v);
        if (decoded) bring({y_, y_strides}, s.y), bring({dy_, dy_strides}, s.dy);
        gradients.add(part, sample, s.k, encoded ? s.v.get() : nullptr, s.y, decoded ? s.dy.get() : nullptr,
                      dec_log_sums + (decoded ? tile * H * T : 0), tokens, s.dk, s.dv, s.head);
        store_tokens(s.dk, n, C, s.stage, dk + (sample * N + first) * C, C);
        if (encoded) store_tokens(s.dv, n, C, s.stage, dv + (sample * N + first) * C, C);
      });
    });
    gradients.finish(dq);
  });
}

}  // extern "C"
