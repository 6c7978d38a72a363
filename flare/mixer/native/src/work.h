// Distribution of tiles over threads. Each thread has a part: a fixed run of tiles, so that results do not depend on
// scheduling.
#pragma once

#include <algorithm>
#include <exception>
#include <vector>

#include "tile.h"

#if defined(_OPENMP)
extern "C" int omp_get_thread_num(void);  // instead of omp.h, which Apple's compiler lacks
extern "C" int omp_get_num_threads(void);
#endif

namespace flare {

// Calls body(part) for every part, on as many threads as OpenMP provides.
template <class Body>
void in_parallel(Index parts, Body body) {
#if defined(_OPENMP)
#pragma omp parallel num_threads(static_cast<int>(parts)) if (parts > 1)
  for (Index part = omp_get_thread_num(); part < parts; part += omp_get_num_threads()) body(part);
#else
  for (Index part = 0; part < parts; part++) body(part);
#endif
}

// Makes one Scratch per part before the threads start, because an exception (out of memory) cannot leave a thread.
template <class Scratch, class... Arguments>
std::vector<Scratch> for_each_part(Index parts, const Arguments&... arguments) {
  std::vector<Scratch> all;
  for (Index p = 0; p < parts; p++) all.emplace_back(arguments...);
  return all;
}

// All tiles of a batch, sample by sample, divided into `parts` runs of equal length.
struct Work {
  Index batch, points, tiles, parts;  // tiles per sample

  Work(Index samples, Index points_each, Index threads)
      : batch(samples), points(points_each), tiles((points_each + T - 1) / T),
        parts(std::max<Index>(1, std::min(threads, batch * tiles))) {}

  Index begin(Index part) const { return batch * tiles * part / parts; }

  // Calls body(sample, tile of the batch, first point, number of points) for the tiles of a part.
  template <class Body>
  void for_tiles(Index part, Body body) const {
    for (Index tile = begin(part); tile < begin(part + 1); tile++) {
      Index sample = tile / tiles, first = (tile - sample * tiles) * T;
      body(sample, tile, first, std::min<Index>(T, points - first));
    }
  }

  // A segment is the tiles of one sample in one part. From segment to segment either number grows by one, so that their
  // sum is a unique index.
  Index segments() const { return parts + batch - 1; }
  Index segment(Index part, Index sample) const { return part + sample; }
  bool takes_part(Index part, Index sample) const {
    return begin(part) < (sample + 1) * tiles && begin(part + 1) > sample * tiles;
  }
};

// Gradients accumulated separately by every part; `total` adds them in a fixed order.
class PartSums {
 public:
  PartSums(Index parts, Index size) : size_(size) {
    for (Index p = 0; p < parts; p++) sums_.push_back(Floats::zeros(size));
  }
  float* operator[](Index part) const { return sums_[part]; }

  void total(float* out, float factor = 1.0f) const {
    const Index parts = static_cast<Index>(sums_.size());
    in_parallel(parts, [&](Index part) {
      const Index begin = size_ * part / parts, end = size_ * (part + 1) / parts;
      std::copy(sums_[0] + begin, sums_[0] + end, out + begin);
      for (Index p = 1; p < parts; p++) {
        const float* sum = sums_[p];
        for (Index i = begin; i < end; i++) out[i] += sum[i];
      }
      for (Index i = begin; i < end; i++) out[i] *= factor;
    });
  }

 private:
  Index size_;
  std::vector<Floats> sums_;
};

// Runs body and returns 0, or 1 if memory runs out: exceptions must not cross the C interface.
template <class Body>
int guarded(Body body) {
  try {
    body();
    return 0;
  } catch (const std::bad_alloc&) {
    return 1;
  }
}

}  // namespace flare
