// The instruction set that the kernels were compiled for, and two constants that Python reads.
#include "attention.h"

#if defined(__AVX512F__)
#define FLARE_INSTRUCTIONS "AVX-512"
#elif defined(__AVX2__)
#define FLARE_INSTRUCTIONS "AVX2"
#elif defined(__AVX__)
#define FLARE_INSTRUCTIONS "AVX"
#elif defined(__ARM_NEON)
#define FLARE_INSTRUCTIONS "NEON"
#elif defined(__SSE2__)
#define FLARE_INSTRUCTIONS "SSE"
#else
#define FLARE_INSTRUCTIONS "no vector instructions known to FLARE"
#endif

#if defined(_OPENMP)
#define FLARE_THREADS ""
#else
#define FLARE_THREADS ", one thread"
#endif

extern "C" const char* flare_compiled_for() { return FLARE_INSTRUCTIONS FLARE_THREADS; }
extern "C" int64_t flare_tile() { return flare::T; }
extern "C" float flare_bound() { return flare::kBounded; }
