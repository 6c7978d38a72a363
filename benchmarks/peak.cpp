// What one core, and all cores together, can do at best: fused multiply-adds, powers of two, bytes to and from memory.
//
//   peak <threads> <attempts>    prints the best of three rates: GFLOP/s, G powers/s, GB/s
//
// The powers are the kernels' own exp2_bounded, so a share of this peak says what is lost beside the arithmetic.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <thread>
#include <vector>

#include "vector.h"

using namespace flare;

// Hides a value from the optimiser without sending it through memory. Volatile, or it would merge equal chains into one.
#if defined(__AVX512F__)
#define HIDE(v) asm volatile("" : "+v"(v))
#elif defined(__x86_64__)
#define HIDE(v) asm volatile("" : "+x"(v))
#else
#define HIDE(v) asm volatile("" : "+w"(v))
#endif

// Twelve chains in named variables: an array would be spilt. Twelve cover the latency of two units of four cycles.
#define TWELVE(F) F(a) F(b) F(c) F(d) F(e) F(f) F(g) F(h) F(i) F(j) F(k) F(l)

static float multiply_adds(long rounds) {
  Vec factor = splat(0.999f), term = splat(0.001f);
  HIDE(factor);
  HIDE(term);
#define START(x) Vec x = splat(1.0f);
#define STEP(x) x = x * factor + term;
#define KEEP(x) HIDE(x);
  TWELVE(START)
  for (long n = 0; n < rounds; n++) {
    TWELVE(STEP) TWELVE(KEEP)
  }
#define ADD(x) +x
  return lane_max(Vec{} TWELVE(ADD));
}

// Four apart, so that one hides the latency of the other.
static float powers(long rounds) {
  Vec a = splat(-1.5f), b = a, c = a, d = a, last = {};
  for (long n = 0; n < rounds; n++) {
    HIDE(a);
    HIDE(b);
    HIDE(c);
    HIDE(d);
    Vec p = exp2_bounded(a), q = exp2_bounded(b), r = exp2_bounded(c), s = exp2_bounded(d);
    HIDE(p);
    HIDE(q);
    HIDE(r);
    HIDE(s);
    last = p;
  }
  return lane_max(last);
}

constexpr long kFloats = 1L << 24;  // three arrays of 64 MB: beyond any cache

static float triad(std::vector<float>& to, const std::vector<float>& one, const std::vector<float>& two) {
  for (long n = 0; n < kFloats; n++) to[n] = one[n] + 0.5f * two[n];
  return to[kFloats / 2];
}

static std::atomic<float> sink;

// As the benchmarks do: CPU time for one thread, wall time for more.
static double now(int threads) {
  if (threads == 1) return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The best of some attempts. All threads start together, and the slowest of them counts.
template <class Body>
static double best_seconds(int threads, int attempts, Body body) {
  double best = 1e9;
  for (int attempt = 0; attempt < attempts; attempt++) {
    std::atomic<int> waiting{threads};
    std::vector<double> taken(threads);
    std::vector<std::thread> pool;
    for (int t = 0; t < threads; t++)
      pool.emplace_back([&, t] {
        waiting--;
        while (waiting > 0) {
        }
        double begin = now(threads);
        sink = body(t);
        taken[t] = now(threads) - begin;
      });
    for (auto& one : pool) one.join();
    best = std::min(best, *std::max_element(taken.begin(), taken.end()));
  }
  return best;
}

int main(int count, char** words) {
  if (count != 3) return 1;
  const int threads = std::atoi(words[1]), attempts = std::atoi(words[2]);
  const long rounds = 8'000'000;
  auto each_second = [=](double amount, auto body) { return amount * threads / best_seconds(threads, attempts, body); };
  double flops = each_second(2.0 * W * 12 * rounds, [=](int) { return multiply_adds(rounds); });
  double exps = each_second(1.0 * W * 4 * rounds, [=](int) { return powers(rounds); });
  std::vector<std::vector<float>> arrays(3 * threads, std::vector<float>(kFloats, 1.0f));
  double bytes = each_second(12.0 * kFloats, [&](int t) { return triad(arrays[3 * t], arrays[3 * t + 1], arrays[3 * t + 2]); });
  std::printf("%.3f %.3f %.3f\n", flops / 1e9, exps / 1e9, bytes / 1e9);
}
