// Residual MLPs, linear maps and normalization on a tile. Activations stay in the cache unless a caller keeps them for the
// backward.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "tile.h"

namespace flare {

// Activation y = x / (1 + 2^(linear x + cubic x^3)): the tanh form of GELU, or SiLU with cubic = 0. Both coefficients are
// negative or zero.
class Activation {
 public:
  static Activation gelu() {
    const float linear = -2.0f * 0.79788456080286535588f * kLog2e;
    return Activation(linear, 0.044715f * linear);
  }
  static Activation silu() { return Activation(-kLog2e, 0.0f); }

  FLARE_INLINE Vec value(Vec x) const { return x * gate(x); }

  // The slope does not use y, so that the product x * g has a single use, as in `value`. Compilers then contract it with a
  // following sum in the same way, and both functions give the same bits.
  FLARE_INLINE Vec value_and_slope(Vec x, Vec& slope) const {
    Vec g = gate(x);
    slope = g + x * (g * (1.0f - g)) * (x * (-3.0f * kLn2 * cubic) * x - kLn2 * linear);
    return x * g;
  }

 private:
  // In this order nothing overflows if cubic is zero.
  FLARE_INLINE Vec exponent(Vec x) const { return x * (x * cubic * x + linear); }
  FLARE_INLINE Vec gate(Vec x) const { return reciprocal(1.0f + exp2_any(exponent(x))); }

  Activation(float l, float c) : linear(l), cubic(c) {}
  float linear, cubic;
};

// Linear layer: weight [out][in] as in PyTorch, bias [out], and their gradients end to end.
struct Linear {
  Index in, out;
  const float *weight, *bias;
  float* gradient;

  template <class Finish>
  FLARE_INLINE void forward(const float* x, Index columns, Finish finish) const {
    const float* b = bias;
    product_from([b](Index r) { return b[r]; }, out, in, {weight, in, 1}, x, T, columns, finish);
  }

  // Does the same, but takes the outputs from `known`, where an earlier forward left them, unless that is null.
  template <class Finish>
  FLARE_INLINE void forward_or_read(const float* known, const float* x, Index columns, Finish finish) const {
    if (!known) return forward(x, columns, finish);
    for (Index r = 0; r < out; r++)
      for (Index c = 0; c < columns; c += W) {
        const float* p = known + r * T + c;
        prefetch(p + out * T);  // read by the next layer; no longer in the cache
        finish(r, c, load(p));
      }
  }

  // Adds the gradient of this tile, given x and the gradient dy of the output; `flipped` is scratch.
  void add_gradient(const float* x, const float* dy, Index columns, float* flipped) const {
    Index ld = round_up(in, W);
    transpose(x, T, in, columns, flipped, ld);
    // Lanes beyond `in` add zeros to what follows, or NaN if a gradient is NaN.
    product(out, columns, {dy, T, 1}, flipped, ld, ld, [&](Index r, Index c, Vec s) {
      float* p = gradient + r * in + c;
      store_any(p, load_any(p) + s);
    });
    add_row_sums(out, columns, gradient + out * in, [&](Index r, Index c) { return load(dy + r * T + c); });
  }

  // Calls finish(r, c, dx) for the gradient dy of the output.
  template <class Finish>
  FLARE_INLINE void input_gradient(const float* dy, Index columns, Finish finish) const {
    product(in, out, {weight, 1, in}, dy, T, columns, finish);
  }
};

struct MlpShape {
  Index in, hidden, out, depth;  // depth -1 means one Linear
  bool skip_in, skip_out, silu;

  Index layers() const { return depth + 2; }
  Index kept_rows() const { return (depth + 1) * hidden; }  // inputs of all activation functions
  Index width(Index layer) const { return layer == 0 ? in : layer == layers() ? out : hidden; }
  float* kept_of_tile(float* kept, Index tile) const { return kept ? kept + tile * kept_rows() * T : nullptr; }
  Index widest() const { return std::max(in, std::max(depth < 0 ? Index(0) : hidden, out)); }
  Index parameters() const {
    Index total = 0;
    for (Index l = 0; l < layers(); l++) total += width(l + 1) * (width(l) + 1);
    return total;
  }
};

// Residual MLP: h_1 = [h_0 +] act(L_0 h_0),  h_l+1 = h_l + act(L_l h_l),  y = [h_last +] L_last h_last
class Mlp {
 public:
  // Tiles as wide as the widest layer. For a backward they hold the inputs and slopes of all layers.
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

  // `weights` has the weight and bias of every layer.
  Mlp(const MlpShape& shape, const float* const* weights, float* gradient)
      : shape_(shape), act_(shape.silu ? Activation::silu() : Activation::gelu()) {
    for (Index l = 0; l < shape.layers(); l++) {
      Index in = shape.width(l), out = shape.width(l + 1);
      layers_.push_back({in, out, weights[2 * l], weights[2 * l + 1], gradient});
      if (gradient) gradient += out * (in + 1);
    }
  }

  // Computes y from x; they must not overlap. `extra` [out][T] is added to y unless null. The inputs of the activation
  // functions are written to `keep` [kept_rows()][T] unless null.
  void forward(const float* x, Index columns, const float* extra, float* y, float* keep, Scratch& scratch) const {
    Index last = shape_.layers() - 1;
    const float* h = x;
    for (Index l = 0; l < last; l++) {
      float* next = scratch.inputs[l % 2];
      if (keep)
        inner(l, h, columns, next, [to = keep + l * shape_.hidden * T](Index at, Vec a) { store(to + at, a); });
      else
        inner(l, h, columns, next, [](Index, Vec) {});
      h = next;
    }
    if (keep) clear_from(columns, keep, shape_.kept_rows());
    finish(h, columns, extra, y);
  }

  // Writes the input and the slope of every layer to `scratch`, for `backward`. They come from what the forward kept, or
  // are recomputed if `kept` is null, with the same bits.
  void prepare_backward(const float* x, Index columns, const float* kept, Scratch& scratch) const {
    for (Index l = 0; l < shape_.layers() - 1; l++) {
      const Activation act = act_;
      const Linear& layer = layers_[l];
      const float *h = input(l, x, scratch), *inputs = kept ? kept + l * shape_.hidden * T : nullptr;
      float *next = scratch.inputs[l + 1], *slopes = scratch.slopes[l];
      auto value = [&](Index at, Vec a) {
        Vec slope, y = act.value_and_slope(a, slope);
        store(slopes + at, slope);
        return y;
      };
      // The sums are written as in `inner`, to get the same bits.
      if (has_skip(l))
        layer.forward_or_read(inputs, h, columns, [&](Index r, Index c, Vec a) {
          store(next + r * T + c, load(h + r * T + c) + value(r * T + c, a));
        });
      else
        layer.forward_or_read(inputs, h, columns,
                              [&](Index r, Index c, Vec a) { store(next + r * T + c, value(r * T + c, a)); });
    }
  }

  // Adds to the gradient of the weights and calls finish(r, c, dx). Requires prepare_backward.
  template <class Finish>
  void backward(const float* x, const float* dy, Index columns, Scratch& scratch, Finish finish) const {
    Index last = shape_.layers() - 1;
    const float* da = dy;  // gradient of the output of the Linear
    const float* dh = dy;  // gradient of the sum with the skip
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
        float* next = scratch.gradient[1];  // may be dh itself: updated element by element
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

  // Computes one hidden layer; calls keep(at, a) with the input of the activation function.
  template <class Keep>
  void inner(Index l, const float* h, Index columns, float* next, Keep keep) const {
    const Activation act = act_;
    if (has_skip(l))
      layers_[l].forward(h, columns, [&](Index r, Index c, Vec a) {
        keep(r * T + c, a);
        store(next + r * T + c, load(h + r * T + c) + act.value(a));
      });
    else
      layers_[l].forward(h, columns, [&](Index r, Index c, Vec a) {
        keep(r * T + c, a);
        store(next + r * T + c, act.value(a));
      });
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

// LayerNorm over the channels of every token, or RMSNorm if the bias is null.
struct Norm {
  Index channels;
  float eps;
  const float *weight, *bias;
  float* gradient;

  // Also writes the normalized input to `unit` and 1 / standard deviation to `inverse` [T].
  void forward(const float* x, Index columns, float* y, float* unit, float* inverse) const {
    Index c = 0;
    for (; c + 4 * W <= columns; c += 4 * W) forward_columns<4>(x + c, y + c, unit + c, inverse + c);
    for (; c < columns; c += W) forward_columns<1>(x + c, y + c, unit + c, inverse + c);
  }

  // Calls finish(r, c, dx) for the gradient dy. Requires a forward.
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
  // V vectors at a time, so that additions need not wait for each other.
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
