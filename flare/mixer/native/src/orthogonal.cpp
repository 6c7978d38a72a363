// Newton-Schulz iterations for a stack of matrices: X <- a X + (b A + c A A) X with A = X X^T, which moves all singular
// values toward 1. A 64 x 64 matrix and its powers stay in the cache during all iterations.

#include <cmath>

#include "work.h"

using namespace flare;

namespace {

struct Scratch {
  Floats x, next, transposed, gram, polynomial;
  Scratch(Index rows, Index columns)
      : x(Floats::zeros(rows * round_up(columns, W))),
        next(Floats::zeros(rows * round_up(columns, W))),
        transposed(Floats::zeros(columns * round_up(rows, W))),
        gram(Floats::zeros(rows * round_up(rows, W))),
        polynomial(Floats::zeros(rows * round_up(rows, W))) {}
};

// Divides a matrix by its Frobenius norm, which bounds its singular values. A zero matrix stays zero.
void normalize(const float* from, Index rows, Index columns, float* x, Index ldx) {
  double sum = 0.0;
  for (Index i = 0; i < rows * columns; i++) sum += static_cast<double>(from[i]) * from[i];
  const float factor = static_cast<float>(1.0 / std::max(std::sqrt(sum), 1e-20));
  for (Index r = 0; r < rows; r++)
    for (Index c = 0; c < columns; c++) x[r * ldx + c] = factor * from[r * columns + c];
}

void iterate(Index rows, Index columns, float a, float b, float c, Scratch& s) {
  const Index ldx = round_up(columns, W), ldg = round_up(rows, W);
  float *x = s.x, *next = s.next, *gram = s.gram, *polynomial = s.polynomial;
  transpose(x, ldx, rows, columns, s.transposed, ldg);
  product(rows, columns, Scalars{x, ldx, 1}, s.transposed, ldg, ldg,
          [&](Index r, Index k, Vec sum) { store(gram + r * ldg + k, sum); });
  product(rows, rows, Scalars{gram, ldg, 1}, gram, ldg, ldg,
          [&](Index r, Index k, Vec sum) { store(polynomial + r * ldg + k, b * load(gram + r * ldg + k) + c * sum); });
  product(rows, rows, Scalars{polynomial, ldg, 1}, x, ldx, ldx,
          [&](Index r, Index k, Vec sum) { store(next + r * ldx + k, a * load(x + r * ldx + k) + sum); });
  std::swap(s.x, s.next);
}

}  // namespace

// x, out [count][rows][columns]; coefficients [iterations][3]
extern "C" int flare_orthogonalize(Index threads, Index count, Index rows, Index columns, Index iterations,
                                   const float* coefficients, const float* x, float* out) {
  return guarded([&] {
    const Index parts = std::max<Index>(1, std::min(threads, count));
    auto scratch = for_each_part<Scratch>(parts, rows, columns);
    in_parallel(parts, [&](Index part) {
      Scratch& s = scratch[part];
      const Index ldx = round_up(columns, W);
      for (Index i = count * part / parts; i < count * (part + 1) / parts; i++) {
        normalize(x + i * rows * columns, rows, columns, s.x, ldx);
        for (const float* p = coefficients; p < coefficients + 3 * iterations; p += 3)
          iterate(rows, columns, p[0], p[1], p[2], s);
        for (Index r = 0; r < rows; r++)
          std::memcpy(out + (i * rows + r) * columns, s.x + r * ldx, sizeof(float) * columns);
      }
    });
  });
}
