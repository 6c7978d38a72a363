// Entry points of the residual MLP and of the FLARE block. A block makes two passes over the points in each direction:
//   forward   encode: norm, keys, values, latents Z       decode: mixed values, output map, norm, MLP
//   backward  decode: everything down to dZ               encode: dQ, dK, dV, both MLPs, norm
// Points interact only through Z and dZ, between the passes.
// The backward recomputes the activations inside the MLPs tile by tile, unless the caller provided memory to keep them.
// Python decides this by size (block_ops.py); gradients have the same bits either way.

#include "mixer.h"
#include "mlp.h"

using namespace flare;

namespace {

// Reads in, hidden, out, depth, skip_in, skip_out, silu.
MlpShape mlp_shape(const Index* s) { return {s[0], s[1], s[2], s[3], s[4] != 0, s[5] != 0, s[6] != 0}; }

// Sizes of a block: threads, B, H, M, N, D, kv_depth, ffn_depth, silu, rms, batch and token stride of x.
struct Block {
  MixerSizes sizes;
  Index C, kv_depth, ffn_depth;
  bool silu, rms;
  Index x_batch, x_token;

  explicit Block(const Index* s)
      : sizes(MixerSizes::from(s)), C(sizes.H * sizes.D), kv_depth(s[6]), ffn_depth(s[7]), silu(s[8] != 0), rms(s[9] != 0),
        x_batch(s[10]), x_token(s[11]) {}

  MlpShape kv() const { return {C, C, C, kv_depth, true, true, silu}; }
  MlpShape ffn() const { return {C, C, C, ffn_depth, true, true, silu}; }
  Index norm_size() const { return rms ? C : 2 * C; }
  Index parameters() const {
    return 2 * norm_size() + 2 * kv().parameters() + C * (C + 1) + ffn().parameters();
  }
};

// Reads parameters one after the other. Their gradients, if not null, are end to end in the same order.
struct ParameterReader {
  const Block& block;
  float eps;
  const float* const* weights;
  float* gradient;

  Norm norm() {
    Norm made{block.C, eps, weights[0], block.rms ? nullptr : weights[1], gradient};
    skip(block.rms ? 1 : 2, block.norm_size());
    return made;
  }
  Linear linear() {
    Linear made{block.C, block.C, weights[0], weights[1], gradient};
    skip(2, block.C * (block.C + 1));
    return made;
  }
  Mlp mlp(const MlpShape& shape) {
    Mlp made(shape, weights, gradient);
    skip(2 * shape.layers(), shape.parameters());
    return made;
  }

 private:
  void skip(Index count, Index numbers) {
    weights += count;
    if (gradient) gradient += numbers;
  }
};

// Parameters of a block, in the order of its modules.
struct Weights {
  Norm before;
  Mlp key, value;
  Linear out;
  Norm after;
  Mlp ffn;

  explicit Weights(ParameterReader next)
      : before(next.norm()), key(next.mlp(next.block.kv())), value(next.mlp(next.block.kv())), out(next.linear()),
        after(next.norm()), ffn(next.mlp(next.block.ffn())) {}
};

// Arguments that all passes share.
struct Pass {
  const Block b;
  const Index B, H, M, N, D, C;
  const Queries q;
  const Work work;
  const float* x;
  const uint8_t* mask;

  Pass(const Index* sizes, float scale, const float* points, const float* queries, const uint8_t* real)
      : b(sizes), B(b.sizes.B), H(b.sizes.H), M(b.sizes.M), N(b.sizes.N), D(b.sizes.D), C(b.C), q(queries, H, M, D, scale),
        work(B, N, b.sizes.threads), x(points), mask(real) {}

  Tokens tokens(Index sample, Index first, Index n) const { return Tokens(n, mask_at(mask, sample, N, first)); }
  Index tile_size() const { return C * T; }
  void load_x(Index sample, Index first, Index n, float* stage, float* tile) const {
    load_tokens(x + sample * b.x_batch + first * b.x_token, b.x_token, n, C, stage, tile);
  }
  // Computes the features between the two residual steps: x plus the output map of the mixed features y.
  void to_middle(Index sample, Index first, Index n, const Linear& out, const float* y, float* stage, float* middle) const {
    load_x(sample, first, n, stage, middle);
    out.forward(y, round_up(n, W), [&](Index r, Index c, Vec v) { store(middle + r * T + c, load(middle + r * T + c) + v); });
  }
  void store_points(const float* tile, Index sample, Index first, Index n, float* stage, float* to) const {
    store_tokens(tile, n, C, stage, to + (sample * N + first) * C, C);
  }
};

// Activations of one tile that save the backward most products: the inputs of all activation functions in the three MLPs,
// and `middle`, the features between the two residual steps. Null if they are not kept.
struct Activations {
  float *key = nullptr, *value = nullptr, *middle = nullptr, *ffn = nullptr;
};

// Intermediate results of a forward that the backward needs.
struct Kept {
  explicit Kept(float* const* p)
      : keys(p[0]), values(p[1]), mixed(p[2]), z(p[3]), enc_log_sums(p[4]), dec_log_sums(p[5]), bounds(p[6]),
        activations(p[7]) {}

  float *keys, *values, *mixed;  // tiles [B tiles][C][T]; values, mixed and dec_log_sums are null without a backward
  float *z, *enc_log_sums;       // [B][H][M][D], [B][H][M]
  float *dec_log_sums, *bounds;  // [B tiles][H][T], [B][H]
  float* activations;            // four arrays [B tiles][rows][T], or null

  // Each of the four arrays is read from the first tile to the last, which suits prefetching.
  Activations of_tile(const Block& b, Index tiles, Index tile) const {
    if (!activations) return {};
    const Index kv = b.kv().kept_rows() * T, middle = b.C * T, ffn = b.ffn().kept_rows() * T;
    float *values = activations + tiles * kv, *middles = values + tiles * kv, *ffns = middles + tiles * middle;
    return {activations + tile * kv, values + tile * kv, middles + tile * middle, ffns + tile * ffn};
  }
};

void encode_pass(const Pass& p, const Weights& w, const Kept& kept) {
  Encoder encoder(p.work, p.q);
  struct Scratch {
    Floats stage, x, normed, v, powers{T * kChunk}, inverse{T};
    Mlp::Scratch mlp;
    explicit Scratch(const Block& b)
        : stage(T * round_up(b.C, W)), x(b.C * T), normed(b.C * T), v(b.C * T), mlp(b.kv(), false) {}
  };
  auto scratch = for_each_part<Scratch>(p.work.parts, p.b);
  in_parallel(p.work.parts, [&](Index part) {
    Scratch& s = scratch[part];
    p.work.for_tiles(part, [&](Index sample, Index tile, Index first, Index n) {
      Tokens tokens = p.tokens(sample, first, n);
      float *k = kept.keys + tile * p.tile_size(), *v = kept.values ? kept.values + tile * p.tile_size() : s.v.get();
      const Activations keep = kept.of_tile(p.b, p.B * p.work.tiles, tile);
      p.load_x(sample, first, n, s.stage, s.x);
      w.before.forward(s.x, tokens.columns, s.normed, s.x, s.inverse);
      w.key.forward(s.normed, tokens.columns, nullptr, k, keep.key, s.mlp);
      w.value.forward(s.normed, tokens.columns, nullptr, v, keep.value, s.mlp);
      tokens.clear_padding(k, p.C);
      tokens.clear_padding(v, p.C);
      encoder.add(part, sample, k, v, tokens, s.powers);
    });
  });
  encoder.finish(kept.z, kept.enc_log_sums, kept.bounds);
}

void decode_pass(const Pass& p, const Weights& w, const Kept& kept, float* out) {
  struct Scratch {
    Floats stage, x, y, normed, unit, log_sums, powers{T * kChunk}, inverse{T};
    Mlp::Scratch mlp;
    explicit Scratch(const Block& b)
        : stage(T * round_up(b.C, W)), x(b.C * T), y(b.C * T), normed(b.C * T), unit(b.C * T), log_sums(b.sizes.H * T),
          mlp(b.ffn(), false) {}
  };
  auto scratch = for_each_part<Scratch>(p.work.parts, p.b);
  in_parallel(p.work.parts, [&](Index part) {
    Scratch& s = scratch[part];
    p.work.for_tiles(part, [&](Index sample, Index tile, Index first, Index n) {
      Tokens tokens = p.tokens(sample, first, n);
      float* y = kept.mixed ? kept.mixed + tile * p.tile_size() : s.y.get();
      decode_heads(p.q, kept.keys + tile * p.tile_size(), kept.z + sample * p.H * p.M * p.D, tokens, kept.bounds + sample * p.H,
                   y, kept.dec_log_sums ? kept.dec_log_sums + tile * p.H * T : s.log_sums.get(), s.powers);
      const Activations keep = kept.of_tile(p.b, p.B * p.work.tiles, tile);
      float* middle = keep.middle ? keep.middle : s.x.get();
      p.to_middle(sample, first, n, w.out, y, s.stage, middle);
      if (keep.middle) clear_from(tokens.columns, middle, p.C);
      w.after.forward(middle, tokens.columns, s.normed, s.unit, s.inverse);
      w.ffn.forward(s.normed, tokens.columns, middle, s.unit, keep.ffn, s.mlp);
      p.store_points(s.unit, sample, first, n, s.stage, out);
    });
  });
}

// Results of the first backward pass for the second: the gradients of `mixed`, of the features between the two residual
// steps, and of Z.
struct Between {
  Floats mixed, middle, z;
  explicit Between(const Pass& p)
      : mixed(p.B * p.work.tiles * p.tile_size()), middle(p.B * p.work.tiles * p.tile_size()), z(p.B * p.H * p.M * p.D) {}
};

// `parts` has the weights and a gradient for each part. dout [B][N][C]
void decode_backward_pass(const Pass& p, const std::vector<Weights>& parts, const Kept& kept, const float* dout,
                      const Between& between) {
  LatentGradient gradient(p.work, p.q);
  struct Scratch {
    Floats stage, x, normed, unit, dout, dnormed, scaled, flipped, powers{T * kChunk}, inverse{T};
    Mlp::Scratch mlp;
    explicit Scratch(const Block& b)
        : stage(T * round_up(b.C, W)), x(b.C * T), normed(b.C * T), unit(b.C * T), dout(b.C * T), dnormed(b.C * T),
          scaled(b.sizes.D * T), flipped(T * round_up(b.C, W)), mlp(b.ffn(), true) {}
  };
  auto scratch = for_each_part<Scratch>(p.work.parts, p.b);
  in_parallel(p.work.parts, [&](Index part) {
    Scratch& s = scratch[part];
    const Weights& w = parts[part];
    p.work.for_tiles(part, [&](Index sample, Index tile, Index first, Index n) {
      Tokens tokens = p.tokens(sample, first, n);
      const Index columns = tokens.columns, at = tile * p.tile_size();
      const float* y = kept.mixed + at;
      float *dy = between.mixed + at, *dh = between.middle + at;
      const Activations known = kept.of_tile(p.b, p.B * p.work.tiles, tile);
      load_tokens(dout + (sample * p.N + first) * p.C, p.C, n, p.C, s.stage, s.dout);
      if (!known.middle) p.to_middle(sample, first, n, w.out, y, s.stage, s.x);
      w.after.forward(known.middle ? known.middle : s.x.get(), columns, s.normed, s.unit, s.inverse);
      w.ffn.prepare_backward(s.normed, columns, known.ffn, s.mlp);
      w.ffn.backward(s.normed, s.dout, columns, s.mlp, [&](Index r, Index c, Vec d) { store(s.dnormed + r * T + c, d); });
      w.after.backward(s.dnormed, columns, s.unit, s.inverse,
                       [&](Index r, Index c, Vec d) { store(dh + r * T + c, load(s.dout + r * T + c) + d); });
      w.out.add_gradient(y, dh, columns, s.flipped);
      w.out.input_gradient(dh, columns, [&](Index r, Index c, Vec d) { store(dy + r * T + c, d); });
      tokens.clear_padding(dy, p.C);
      gradient.add(part, sample, kept.keys + at, dy, kept.dec_log_sums + tile * p.H * T, kept.bounds, tokens, s.scaled,
                   s.powers);
    });
  });
  gradient.finish(between.z);
}

// Writes dx [B][N][C] and dq [H][M][D].
void encode_backward_pass(const Pass& p, const std::vector<Weights>& parts, const Kept& kept, const Between& between, float* dx,
                     float* dq) {
  HeadGradients gradients(p.work, p.q, kept.z, between.z, kept.enc_log_sums, kept.bounds);
  struct Scratch {
    Floats stage, x, normed, unit, dk, dv, dnormed, inverse{T};
    BackwardScratch head;
    Mlp::Scratch mlp;
    explicit Scratch(const Block& b)
        : stage(T * round_up(b.C, W)), x(b.C * T), normed(b.C * T), unit(b.C * T), dk(b.C * T), dv(b.C * T), dnormed(b.C * T),
          head(b.sizes.D), mlp(b.kv(), true) {}
  };
  auto scratch = for_each_part<Scratch>(p.work.parts, p.b);
  in_parallel(p.work.parts, [&](Index part) {
    Scratch& s = scratch[part];
    const Weights& w = parts[part];
    p.work.for_tiles(part, [&](Index sample, Index tile, Index first, Index n) {
      Tokens tokens = p.tokens(sample, first, n);
      const Index columns = tokens.columns, at = tile * p.tile_size();
      gradients.add(part, sample, kept.keys + at, kept.values + at, kept.mixed + at, between.mixed + at,
                    kept.dec_log_sums + tile * p.H * T, tokens, s.dk, s.dv, s.head);
      const Activations known = kept.of_tile(p.b, p.B * p.work.tiles, tile);
      p.load_x(sample, first, n, s.stage, s.x);
      w.before.forward(s.x, columns, s.normed, s.unit, s.inverse);
      w.key.prepare_backward(s.normed, columns, known.key, s.mlp);
      w.key.backward(s.normed, s.dk, columns, s.mlp, [&](Index r, Index c, Vec d) { store(s.dnormed + r * T + c, d); });
      w.value.prepare_backward(s.normed, columns, known.value, s.mlp);
      w.value.backward(s.normed, s.dv, columns, s.mlp, [&](Index r, Index c, Vec d) {
        store(s.dnormed + r * T + c, load(s.dnormed + r * T + c) + d);
      });
      const float* dh = between.middle + at;
      w.before.backward(s.dnormed, columns, s.unit, s.inverse,
                        [&](Index r, Index c, Vec d) { store(s.x + r * T + c, load(dh + r * T + c) + d); });
      p.store_points(s.x, sample, first, n, s.stage, dx);
    });
  });
  gradients.finish(dq);
}

}  // namespace

extern "C" {

// x [rows][in] with a stride, y [rows][out]. `kept` receives activations for the backward, [tiles][kept_rows()][T]; or null.
int flare_resmlp(Index threads, Index rows, const Index* shape_, const float* x, Index x_stride, const float* const* weights,
                 float* kept, float* y) {
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
      work.for_tiles(part, [&](Index, Index tile, Index first, Index n) {
        load_tokens(x + first * x_stride, x_stride, n, shape.in, s.stage, s.x);
        mlp.forward(s.x, round_up(n, W), nullptr, s.y, shape.kept_of_tile(kept, tile), s.mlp);
        store_tokens(s.y, n, shape.out, s.stage, y + first * shape.out, shape.out);
      });
    });
  });
}

// dx is null if it is not needed, `kept` if the forward kept nothing.
int flare_resmlp_backward(Index threads, Index rows, const Index* shape_, const float* x, Index x_stride,
                          const float* const* weights, float* kept, const float* dy, Index dy_stride, float* dx, float* dweights) {
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
      work.for_tiles(part, [&](Index, Index tile, Index first, Index n) {
        Index columns = round_up(n, W);
        load_tokens(x + first * x_stride, x_stride, n, shape.in, s.stage, s.x);
        load_tokens(dy + first * dy_stride, dy_stride, n, shape.out, s.stage, s.dy);
        mlp.prepare_backward(s.x, columns, shape.kept_of_tile(kept, tile), s.mlp);
        mlp.backward(s.x, s.dy, columns, s.mlp, [&](Index r, Index c, Vec d) { store(s.dx + r * T + c, d); });
        if (dx) store_tokens(s.dx, n, shape.in, s.stage, dx + first * shape.in, shape.in);
      });
    });
    sums.total(dweights);
  });
}

// out [B][N][C]. `kept` is null, or eight arrays to fill for the backward, in the order of Kept; the last may be null.
int flare_block(const Index* sizes, float scale, float eps, const float* x, const float* q, const float* const* weights,
                const uint8_t* mask, float* const* kept_, float* out) {
  return guarded([&] {
    const Pass p(sizes, scale, x, q, mask);
    const Weights w(ParameterReader{p.b, eps, weights, nullptr});
    if (kept_) {
      const Kept kept(kept_);
      encode_pass(p, w, kept);
      decode_pass(p, w, kept, out);
    } else {
      Floats keys(p.B * p.work.tiles * p.tile_size()), z(p.B * p.H * p.M * p.D), sums(p.B * p.H * p.M), bounds(p.B * p.H);
      float* const own[] = {keys, nullptr, nullptr, z, sums, nullptr, bounds, nullptr};
      const Kept kept(own);
      encode_pass(p, w, kept);
      decode_pass(p, w, kept, out);
    }
  });
}

// From dout [B][N][C], computes dx [B][N][C], dq [H][M][D] and the gradients of all weights, end to end.
int flare_block_backward(const Index* sizes, float scale, float eps, const float* x, const float* q, const float* const* weights,
                         const uint8_t* mask, float* const* kept_, const float* dout, float* dx, float* dq, float* dweights) {
  return guarded([&] {
    const Pass p(sizes, scale, x, q, mask);
    const Kept kept(kept_);
    PartSums sums(p.work.parts, p.b.parameters());
    std::vector<Weights> parts;
    for (Index part = 0; part < p.work.parts; part++) parts.emplace_back(ParameterReader{p.b, eps, weights, sums[part]});
    const Between between(p);
    decode_backward_pass(p, parts, kept, dout, between);
    encode_backward_pass(p, parts, kept, between, dx, dq);
    sums.total(dweights);
  });
}

}  // extern "C"
