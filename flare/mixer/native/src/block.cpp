// Entry points of the residual MLP and of the FLARE block, which is two passes over the points each way:
//   forward   gather: norm, keys, values, encode        scatter: decode, output map, norm, MLP
//   backward  scatter: all of it, down to dZ            gather: dQ, dK, dV, both MLPs, norm
// Between the passes stand Z and dZ, which is all that one point ever learns of another.
// Activations inside an MLP are never stored; the backward makes them again, tile by tile.

#include "mixer.h"
#include "mlp.h"

using namespace flare;

namespace {

// in, hidden, out, depth, skip_in, skip_out, silu
MlpShape mlp_shape(const Index* s) { return {s[0], s[1], s[2], s[3], s[4] != 0, s[5] != 0, s[6] != 0}; }

// threads, B, H, M, N, D, kv_depth, ffn_depth, silu, rms, batch and token stride of x
struct Block {
  MixerSizes sizes;
  Index C, kv_depth, ffn_depth;
  bool silu, rms;
  Index x_batch, x_token;

  explicit Block(const Index* s)
      : sizes(MixerSizes::from(s)), C(sizes.H * sizes.D), kv_depth(s[6]), ffn_depth(s[7]), silu(s[8] != 0), rms(s[9] != 0),
        x_batch(s[10]), x_token(s[11]) {}

  Index norm_count() const { return rms ? 1 : 2; }  // parameters
  Index norm_size() const { return norm_count() * C; }
  MlpShape mlp(Index depth) const { return {C, C, C, depth, true, true, silu}; }
  const float* at(const float* x, Index sample, Index first) const { return x + sample * x_batch + first * x_token; }
};

// The parameters of a block in the order of its modules. Their gradients lie end to end in the same order.
struct GatherWeights {
  Norm norm;
  Mlp key, value;

  static Index size(const Block& b) { return b.norm_size() + 2 * b.mlp(b.kv_depth).parameters(); }
  GatherWeights(const Block& b, float eps, const float* const* w, float* g)
      : norm{b.C, eps, w[0], b.rms ? nullptr : w[1], g},
        key(b.mlp(b.kv_depth), w + b.norm_count(), g ? g + b.norm_size() : nullptr),
        value(b.mlp(b.kv_depth), w + b.norm_count() + 2 * b.mlp(b.kv_depth).layers(),
              g ? g + b.norm_size() + b.mlp(b.kv_depth).parameters() : nullptr) {}
};

struct ScatterWeights {
  Linear out;
  Norm norm;
  Mlp ffn;

  static Index size(const Block& b) { return b.C * (b.C + 1) + b.norm_size() + b.mlp(b.ffn_depth).parameters(); }
  ScatterWeights(const Block& b, float eps, const float* const* w, float* g)
      : out{b.C, b.C, w[0], w[1], g}, norm{b.C, eps, w[2], b.rms ? nullptr : w[3], g ? g + b.C * (b.C + 1) : nullptr},
        ffn(b.mlp(b.ffn_depth), w + 2 + b.norm_count(), g ? g + b.C * (b.C + 1) + b.norm_size() : nullptr) {}
};

}  // namespace

extern "C" {

// x rows of in_dim with a stride, y [rows][out]
int flare_resmlp(Index threads, Index rows, const Index* shape_, const float* x, Index x_stride, const float* const* weights,
                 float* y) {
  return guarded([&] {
    const MlpShape shape = mlp_shape(shape_);
    Work work(1, rows, threads);
    struct Scratch {
      Floats stage, x, y;
      Mlp::Scratch mlp;
      explicit Scratch(const MlpShape& s)
          : stage(T * round_up(s.widest(), W)), x(s.in * T), y(s.out * T), mlp(s, false) {}
    };
    auto scratch = for_each_part<Scratch>(work.parts, shape);
    Mlp mlp(shape, weights, nullptr);
    in_parallel(work.parts, [&](Index part) {
      Scratch& s = scratch[part];
      work.for_tiles(part, [&](Index, Index, Index first, Index n) {
        load_tokens(x + first * x_stride, x_stride, n, shape.in, s.stage, s.x);
        mlp.forward(s.x, round_up(n, W), nullptr, s.y, s.mlp);
        store_tokens(s.y, n, shape.out, s.stage, y + first * shape.out, shape.out);
      });
    });
  });
}

// dx may be null where nobody asks for it.
int flare_resmlp_backward(Index threads, Index rows, const Index* shape_, const float* x, Index x_stride,
                          const float* const* weights, const float* dy, Index dy_stride, float* dx, float* dweights) {
  return guarded([&] {
    const MlpShape shape = mlp_shape(shape_);
    Work work(1, rows, threads);
    struct Scratch {
      Floats stage, x, dy, dx;
      Mlp::Scratch mlp;
      explicit Scratch(const MlpShape& s)
          : stage(T * round_up(s.widest(), W)), x(s.in * T), dy(s.out * T), dx(s.in * T), mlp(s, true) {}
    };
    auto scratch = for_each_part<Scratch>(work.parts, shape);
    PartSums sums(work.parts, shape.parameters());
    std::vector<Mlp> mlps;
    for (Index part = 0; part < work.parts; part++) mlps.emplace_back(shape, weights, sums[part]);
    in_parallel(work.parts, [&](Index part) {
      Scratch& s = scratch[part];
      const Mlp& mlp = mlps[part];
      work.for_tiles(part, [&](Index, Index, Index first, Index n) {
        Index columns = round_up(n, W);
        load_tokens(x + first * x_stride, x_stride, n, shape.in, s.stage, s.x);
        load_tokens(dy + first * dy_stride, dy_stride, n, shape.out, s.stage, s.dy);
        mlp.forward_keeping(s.x, columns, nullptr, nullptr, s.mlp);
        mlp.backward(s.x, s.dy, columns, s.mlp, [&](Index r, Index c, Vec d) { store(s.dx + r * T + c, d); });
        if (dx) store_tokens(s.dx, n, shape.in, s.stage, dx + first * shape.in, shape.in);
      });
    });
    sums.total(dweights);
  });
}

// keys and values: out, tiles [B tiles][C][T]; values may be null where no gradient is wanted.
int flare_block_gather(const Index* sizes, float scale, float eps, const float* x, const float* q_, const float* const* weights,
                       const uint8_t* mask, float* keys, float* values, float* z, float* log_sums, float* bounds) {
  return guarded([&] {
    const Block b(sizes);
    const Index B = b.sizes.B, H = b.sizes.H, M = b.sizes.M, N = b.sizes.N, D = b.sizes.D;
    Queries q(q_, H, M, D, scale);
    Work work(B, N, b.sizes.threads);
    Encoder encoder(work, q);
    GatherWeights w(b, eps, weights, nullptr);
    struct Scratch {
      Floats stage, x, normed, v, powers{T * kChunk}, inverse{T};
      Mlp::Scratch mlp;
      explicit Scratch(const Block& b)
          : stage(T * round_up(b.C, W)), x(b.C * T), normed(b.C * T), v(b.C * T), mlp(b.mlp(b.kv_depth), false) {}
    };
    auto scratch = for_each_part<Scratch>(work.parts, b);
    in_parallel(work.parts, [&](Index part) {
      Scratch& s = scratch[part];
      work.for_tiles(part, [&](Index sample, Index tile, Index first, Index n) {
        Tokens tokens(n, mask_at(mask, sample, N, first));
        float *k = keys + tile * b.C * T, *v = values ? values + tile * b.C * T : s.v;
        load_tokens(b.at(x, sample, first), b.x_token, n, b.C, s.stage, s.x);
        w.norm.forward(s.x, tokens.columns, s.normed, s.x, s.inverse);
        w.key.forward(s.normed, tokens.columns, nullptr, k, s.mlp);
        w.value.forward(s.normed, tokens.columns, nullptr, v, s.mlp);
        tokens.clear_padding(k, b.C);
        tokens.clear_padding(v, b.C);
        encoder.add(part, sample, k, v, tokens, s.powers);
      });
    });
    encoder.finish(z, log_sums, bounds);
  });
}

// mixed [B tiles][C][T] and log_sums [B tiles][H][T] may be null where no gradient is wanted. out [B][N][C]
int flare_block_scatter(const Index* sizes, float scale, float eps, const float* x, const float* q_, const float* const* weights,
                        const uint8_t* mask, const float* keys, const float* z, const float* bounds, float* mixed,
                        float* log_sums, float* out) {
  return guarded([&] {
    const Block b(sizes);
    const Index B = b.sizes.B, H = b.sizes.H, M = b.sizes.M, N = b.sizes.N, D = b.sizes.D;
    Queries q(q_, H, M, D, scale);
    Work work(B, N, b.sizes.threads);
    ScatterWeights w(b, eps, weights, nullptr);
    struct Scratch {
      Floats stage, x, y, normed, unit, log_sums, powers{T * kChunk}, inverse{T};
      Mlp::Scratch mlp;
      explicit Scratch(const Block& b)
          : stage(T * round_up(b.C, W)), x(b.C * T), y(b.C * T), normed(b.C * T), unit(b.C * T),
            log_sums(b.sizes.H * T), mlp(b.mlp(b.ffn_depth), false) {}
    };
    auto scratch = for_each_part<Scratch>(work.parts, b);
    in_parallel(work.parts, [&](Index part) {
      Scratch& s = scratch[part];
      work.for_tiles(part, [&](Index sample, Index tile, Index first, Index n) {
        Tokens tokens(n, mask_at(mask, sample, N, first));
        float* y = mixed ? mixed + tile * b.C * T : s.y;
        decode_heads(q, keys + tile * b.C * T, z + sample * H * M * D, tokens, bounds + sample * H, y,
                     log_sums ? log_sums + tile * H * T : s.log_sums.get(), s.powers);
        load_tokens(b.at(x, sample, first), b.x_token, n, b.C, s.stage, s.x);
        w.out.forward(y, tokens.columns,
                      [&](Index r, Index c, Vec v) { store(s.x + r * T + c, load(s.x + r * T + c) + v); });
        w.norm.forward(s.x, tokens.columns, s.normed, s.unit, s.inverse);
        w.ffn.forward(s.normed, tokens.columns, s.x, s.unit, s.mlp);
        store_tokens(s.unit, n, b.C, s.stage, out + (sample * N + first) * b.C, b.C);
      });
    });
  });
}

// From the gradient dout [B][N][C]: dmixed and dmiddle (gradient of what stands between the two residual steps), tiles;
// dz [B][H][M][D]; the gradient of the second half of the weights.
int flare_block_scatter_backward(const Index* sizes, float scale, float eps, const float* x, const float* q_,
                                 const float* const* weights, const uint8_t* mask, const float* keys, const float* mixed,
                                 const float* log_sums, const float* bounds, const float* dout, float* dmixed,
                                 float* dmiddle, float* dz, float* dweights) {
  return guarded([&] {
    const Block b(sizes);
    const Index B = b.sizes.B, H = b.sizes.H, M = b.sizes.M, N = b.sizes.N, D = b.sizes.D;
    const Index C = b.C;
    Queries q(q_, H, M, D, scale);
    Work work(B, N, b.sizes.threads);
    LatentGradient gradient(work, q);
    PartSums sums(work.parts, ScatterWeights::size(b));
    struct Scratch {
      Floats stage, x, normed, unit, dout, dnormed, scaled, flipped, powers{T * kChunk}, inverse{T};
      Mlp::Scratch mlp;
      explicit Scratch(const Block& b)
          : stage(T * round_up(b.C, W)), x(b.C * T), normed(b.C * T), unit(b.C * T), dout(b.C * T), dnormed(b.C * T),
            scaled(b.sizes.D * T), flipped(T * round_up(b.C, W)), mlp(b.mlp(b.ffn_depth), true) {}
    };
    auto scratch = for_each_part<Scratch>(work.parts, b);
    std::vector<ScatterWeights> parts;
    for (Index part = 0; part < work.parts; part++) parts.emplace_back(b, eps, weights, sums[part]);
    in_parallel(work.parts, [&](Index part) {
      Scratch& s = scratch[part];
      const ScatterWeights& w = parts[part];
      work.for_tiles(part, [&](Index sample, Index tile, Index first, Index n) {
        Tokens tokens(n, mask_at(mask, sample, N, first));
        const Index columns = tokens.columns;
        const float* y = mixed + tile * C * T;
        float *dy = dmixed + tile * C * T, *dh = dmiddle + tile * C * T;
        load_tokens(b.at(x, sample, first), b.x_token, n, C, s.stage, s.x);
        load_tokens(dout + (sample * N + first) * C, C, n, C, s.stage, s.dout);
        w.out.forward(y, columns, [&](Index r, Index c, Vec v) { store(s.x + r * T + c, load(s.x + r * T + c) + v); });
        w.norm.forward(s.x, columns, s.normed, s.unit, s.inverse);
        w.ffn.forward_keeping(s.normed, columns, nullptr, nullptr, s.mlp);
        w.ffn.backward(s.normed, s.dout, columns, s.mlp,
                       [&](Index r, Index c, Vec d) { store(s.dnormed + r * T + c, d); });
        w.norm.backward(s.dnormed, columns, s.unit, s.inverse,
                        [&](Index r, Index c, Vec d) { store(dh + r * T + c, load(s.dout + r * T + c) + d); });
        w.out.add_gradient(y, dh, columns, s.flipped);
        w.out.input_gradient(dh, columns, [&](Index r, Index c, Vec d) { store(dy + r * T + c, d); });
        tokens.clear_padding(dy, C);
        gradient.add(part, sample, keys + tile * C * T, dy, log_sums + tile * H * T, bounds, tokens, s.scaled, s.powers);
      });
    });
    gradient.finish(dz);
    sums.total(dweights);
  });
}

// The rest: dx [B][N][C], dq [H][M][D], the gradient of the first half of the weights.
int flare_block_gather_backward(const Index* sizes, float scale, float eps, const float* x, const float* q_,
                                const float* const* weights, const uint8_t* mask, const float* keys, const float* values,
                                const float* mixed, const float* z, const float* enc_log_sums, const float* dec_log_sums,
                                const float* bounds, const float* dmixed, const float* dmiddle, const float* dz, float* dx,
                                float* dq, float* dweights) {
  return guarded([&] {
    const Block b(sizes);
    const Index B = b.sizes.B, H = b.sizes.H, M = b.sizes.M, N = b.sizes.N, D = b.sizes.D;
    const Index C = b.C;
    Queries q(q_, H, M, D, scale);
    Work work(B, N, b.sizes.threads);
    HeadGradients gradients(work, q, z, dz, enc_log_sums, bounds);
    PartSums sums(work.parts, GatherWeights::size(b));
    struct Scratch {
      Floats stage, x, normed, unit, dk, dv, dnormed, inverse{T};
      BackwardScratch head;
      Mlp::Scratch mlp;
      explicit Scratch(const Block& b)
          : stage(T * round_up(b.C, W)), x(b.C * T), normed(b.C * T), unit(b.C * T), dk(b.C * T), dv(b.C * T),
            dnormed(b.C * T), head(b.sizes.D), mlp(b.mlp(b.kv_depth), true) {}
    };
    auto scratch = for_each_part<Scratch>(work.parts, b);
    std::vector<GatherWeights> parts;
    for (Index part = 0; part < work.parts; part++) parts.emplace_back(b, eps, weights, sums[part]);
    in_parallel(work.parts, [&](Index part) {
      Scratch& s = scratch[part];
      const GatherWeights& w = parts[part];
      work.for_tiles(part, [&](Index sample, Index tile, Index first, Index n) {
        Tokens tokens(n, mask_at(mask, sample, N, first));
        const Index columns = tokens.columns, at = tile * C * T;
        gradients.add(part, sample, keys + at, values + at, mixed + at, dmixed + at, dec_log_sums + tile * H * T, tokens,
                      s.dk, s.dv, s.head);
        load_tokens(b.at(x, sample, first), b.x_token, n, C, s.stage, s.x);
        w.norm.forward(s.x, columns, s.normed, s.unit, s.inverse);
        w.key.forward_keeping(s.normed, columns, nullptr, nullptr, s.mlp);
        w.key.backward(s.normed, s.dk, columns, s.mlp, [&](Index r, Index c, Vec d) { store(s.dnormed + r * T + c, d); });
        w.value.forward_keeping(s.normed, columns, nullptr, nullptr, s.mlp);
        w.value.backward(s.normed, s.dv, columns, s.mlp, [&](Index r, Index c, Vec d) {
          store(s.dnormed + r * T + c, load(s.dnormed + r * T + c) + d);
        });
        const float* dh = dmiddle + at;
        w.norm.backward(s.dnormed, columns, s.unit, s.inverse,
                        [&](Index r, Index c, Vec d) { store(s.x + r * T + c, load(dh + r * T + c) + d); });
        store_tokens(s.x, n, C, s.stage, dx + (sample * N + first) * C, C);
      });
    });
    gradients.finish(dq);
    sums.total(dweights);
  });
}

}  // extern "C"
