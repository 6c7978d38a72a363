// Residual MLPs, linear maps and normalisation on a tile; activations never leave the cache.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "tile.h"

namespace flare {

// y = x / (1 + 2^-(linear x + cubic x^3)): the tanh form of GELU, and SiLU with cubic = 0.
class Activation {
 public:
  static Activation gelu() {
    const float linear = 2.0f * 0.79788456080286535588f * kLog2e;
    return Activation(linear, 0.044715f * linear);
  }
  static Activation silu() { return Activation(kLog2e, 0.0f); }

  FLARE_INLINE Vec value(Vec x) const { return x / (1.0f + exp2_any(-exponent(x))); }

  FLARE_INLINE Vec value_and_slope(Vec x, Vec& slope) const {
    Vec gate = 1.0f / (1.0f + exp2_any(-exponent(x)));
    Vec y = x * gate;
    slope = gate + y * (1.0f - gate) * (x * (3.0f * kLn2 * cubic) * x + kLn2 * linear);
    return y;
  }

 private:
  // Multiplied in this order, no x overflows where cubic is zero.
  FLARE_INLINE Vec exponent(Vec x) const { return x * (x * cubic * x + linear); }

  Activation(float l, float c) : linear(l), cubic(c) {}
  float linear, cubic;
};

// weight [out][in] as PyTorch keeps it, and bias [out]; their gradients lie end to end.
struct Linear {
  Index in, out;
  const float *weight, *bias;
  float* gradient;

  template <class Finish>
  FLARE_INLINE void forward(const float* x, Index columns, Finish finish) const {
    const float* b = bias;
    product_from([b](Index r) { return b[r]; }, out, in, {weight, in, 1}, x, T, columns, finish);
  }

  // Adds this tile's part of the gradient, given x and the gradient dy of the output; `flipped` is scratch.
  void add_gradient(const float* x, const float* dy, Index columns, float* flipped) const {
    Index ld = round_up(in, W);
    transpose(x, T, in, columns, flipped, ld);
    // Lanes beyond `in` add zeros to what follows (where a gradient is NaN, NaN).
    product(out, columns, {dy, T, 1}, flipped, ld, ld, [&](Index r, Index c, Vec s) {
      float* p = gradient + r * in + c;
      store_any(p, load_any(p) + s);
    });
    add_row_sums(out, columns, gradient + out * in, [&](Index r, Index c) { return load(dy + r * T + c); });
  }

  // dx(r, c) for the gradient dy of the output.
  template <class Finish>
  FLARE_INLINE void input_gradient(const float* dy, Index columns, Finish finish) const {
    product(in, out, {weight, 1, in}, dy, T, columns, finish);
  }
};

struct MlpShape {
  Index in, hidden, out, depth;  // depth -1: one Linear
  bool skip_in, skip_out, silu;

  Index layers() const { return depth + 2; }
  Index width(Index layer) const { return layer == 0 ? in : layer == layers() ? out : hidden; }
  Index widest() const { return std::max(in, std::max(depth < 0 ? Index(0) : hidden, out)); }
  Index parameters() const {
    Index total = 0;
    for (Index l = 0; l < layers(); l++) total += width(l + 1) * (width(l) + 1);
    return total;
  }
};

// h_1 = [h_0 +] act(L_0 h_0),  h_l+1 = h_l + act(L_l h_l),  y = [h_last +] L_last h_last
class Mlp {
 public:
  // Tiles of the widest layer. For a backward: what the forward before it leaves behind.
  struct Scratch {
    std::vector<Floats> inputs, slopes;
    Floats flipped, gradient[2];

    Scratch(const MlpShape& shape, bool backward) {
      Index size = shape.widest() * T;
      for (Index l = 0; l < (backward ? shape.layers() : std::min(shape.layers(), Index(2))); l++) {
        inputs.emplace_back(size);
        if (backward) slopes.emplace_back(size);
      }
      if (!backward) return;
      flipped = Floats(T * round_up(shape.widest(), W));
      for (auto& g : gradient) g = Floats(size);
    }
  };

  // weights: weight and bias of every layer.
  Mlp(const MlpShape& shape, const float* const* weights, float* gradient)
      : shape_(shape), act_(shape.silu ? Activation::silu() : Activation::gelu()) {
    for (Index l = 0; l < shape.layers(); l++) {
      Index in = shape.width(l), out = shape.width(l + 1);
      layers_.push_back({in, out, weights[2 * l], weights[2 * l + 1], gradient});
      if (gradient) gradient += out * (in + 1);
    }
  }

  // y may not be x. `extra` [out][T] is added to y where given.
  void forward(const float* x, Index columns, const float* extra, float* y, Scratch& scratch) const {
    Index last = shape_.layers() - 1;
    const float* h = x;
    for (Index l = 0; l < last; l++) {
      float* next = scratch.inputs[l % 2];
      inner<false>(l, h, columns, next, nullptr);
      h = next;
    }
    finish(h, columns, extra, y);
  }

  // Forward for a gradient: the input and the slope of every layer stay in `scratch`. y may be null.
  void forward_keeping(const float* x, Index columns, const float* extra, float* y, Scratch& scratch) const {
    Index last = shape_.layers() - 1;
    for (Index l = 0; l < last; l++)
      inner<true>(l, input(l, x, scratch), columns, scratch.inputs[l + 1], scratch.slopes[l]);
    if (y) finish(input(last, x, scratch), columns, extra, y);
  }

  // After forward_keeping: adds to the gradient of the weights, and calls finish(r, c, dx).
  template <class Finish>
  void backward(const float* x, const float* dy, Index columns, Scratch& scratch, Finish finish) const {
    Index last = shape_.layers() - 1;
    const float* da = dy;  // gradient of the Linear's output
    const float* dh = dy;  // gradient of what its skip adds to
    for (Index l = last; l >= 0; l--) {
      const float* h = input(l, x, scratch);
      if (l < last) {
        float* scaled = scratch.gradient[0];
        for (Index r = 0; r < shape_.width(l + 1); r++)
          for (Index c = 0; c < columns; c += W)
            store(scaled + r * T + c, load(dh + r * T + c) * load(scratch.slopes[l] + r * T + c));
        da = scaled;
      }
      layers_[l].add_gradient(h, da, columns, scratch.flipped);
      bool skip = has_skip(l);
      if (l == 0) {
        layers_[0].input_gradient(da, columns, [&](Index r, Index c, Vec s) {
          finish(r, c, skip ? s + load(dh + r * T + c) : s);
        });
      } else {
        float* next = scratch.gradient[1];  // in place where dh is it already: element by element
        layers_[l].input_gradient(da, columns, [&](Index r, Index c, Vec s) {
          store(next + r * T + c, skip ? s + load(dh + r * T + c) : s);
        });
        dh = next;
      }
    }
  }

 private:
  bool has_skip(Index l) const {
    if (l == shape_.layers() - 1) return shape_.skip_out;
    return l > 0 || shape_.skip_in;
  }

  static const float* input(Index l, const float* x, const Scratch& s) { return l == 0 ? x : s.inputs[l]; }

  template <bool Slope>
  void inner(Index l, const float* h, Index columns, float* next, float* slope) const {
    const Activation act = act_;
    auto apply = [&](Index r, Index c, Vec a) {
      if constexpr (!Slope) return act.value(a);
      Vec d, y = act.value_and_slope(a, d);
      store(slope + r * T + c, d);
      return y;
    };
    if (has_skip(l))
      layers_[l].forward(h, columns, [&](Index r, Index c, Vec a) {
        store(next + r * T + c, load(h + r * T + c) + apply(r, c, a));
      });
    else
      layers_[l].forward(h, columns, [&](Index r, Index c, Vec a) { store(next + r * T + c, apply(r, c, a)); });
  }

  void finish(const float* h, Index columns, const float* extra, float* y) const {
    bool skip = shape_.skip_out;
    layers_.back().forward(h, columns, [&](Index r, Index c, Vec a) {
      if (skip) a += load(h + r * T + c);
      if (extra) a += load(extra + r * T + c);
      store(y + r * T + c, a);
    });
  }

  MlpShape shape_;
  Activation act_;
  std::vector<Linear> layers_;
};

// LayerNorm, or RMSNorm where bias is null, over the channels of every token.
struct Norm {
  Index channels;
  float eps;
  const float *weight, *bias;
  float* gradient;

  // Leaves the centred, scaled input in `unit` and 1 / deviation in `inverse` [T].
  void forward(const float* x, Index columns, float* y, float* unit, float* inverse) const {
    Index c = 0;
    for (; c + 4 * W <= columns; c += 4 * W) forward_columns<4>(x + c, y + c, unit + c, inverse + c);
    for (; c < columns; c += W) forward_columns<1>(x + c, y + c, unit + c, inverse + c);
  }

  // finish(r, c, dx) for the gradient dy, after a forward.
  template <class Finish>
  void backward(const float* dy, Index columns, const float* unit, const float* inverse, Finish finish) const {
    const bool rms = bias == nullptr;
    add_row_sums(channels, columns, gradient, [&](Index r, Index c) { return load(dy + r * T + c) * load(unit + r * T + c); });
    if (!rms) add_row_sums(channels, columns, gradient + channels, [&](Index r, Index c) { return load(dy + r * T + c); });
    float share = 1.0f / static_cast<float>(channels);
    for (Index c = 0; c < columns; c += W) {
      Vec mean = {}, along = {};
      for (Index r = 0; r < channels; r++) {
        Vec g = load(dy + r * T + c) * weight[r];
        mean += g;
        along += g * load(unit + r * T + c);
      }
      mean = rms ? Vec{} : mean * share;
      along *= share;
      Vec scale = load(inverse + c);
      for (Index r = 0; r < channels; r++)
        finish(r, c, (load(dy + r * T + c) * weight[r] - mean - load(unit + r * T + c) * along) * scale);
    }
  }

 private:
  // V vectors side by side, so that one sum need not wait for itself.
  template <int V>
  FLARE_INLINE void forward_columns(const float* x, float* y, float* unit, float* inverse) const {
    const float share = 1.0f / static_cast<float>(channels);
    Vec mean[V] = {}, squares[V] = {}, scale[V];
    if (bias) {
      for (Index r = 0; r < channels; r++) {
        FLARE_UNROLL
        for (int v = 0; v < V; v++) mean[v] += load(x + r * T + v * W);
      }
      FLARE_UNROLL
      for (int v = 0; v < V; v++) mean[v] *= share;
    }
    for (Index r = 0; r < channels; r++) {
      FLARE_UNROLL
      for (int v = 0; v < V; v++) {
        Vec d = load(x + r * T + v * W) - mean[v];
        squares[v] += d * d;
      }
    }
    FLARE_UNROLL
    for (int v = 0; v < V; v++) {
      Vec variance = squares[v] * share + eps;
      FLARE_UNROLL
      for (int i = 0; i < W; i++) scale[v][i] = 1.0f / std::sqrt(variance[i]);
      store(inverse + v * W, scale[v]);
    }
    for (Index r = 0; r < channels; r++) {
      FLARE_UNROLL
      for (int v = 0; v < V; v++) {
        Vec u = (load(x + r * T + v * W) - mean[v]) * scale[v];
        store(unit + r * T + v * W, u);
        store(y + r * T + v * W, bias ? u * weight[r] + bias[r] : u * weight[r]);
      }
    }
  }
};

}  // namespace flare
