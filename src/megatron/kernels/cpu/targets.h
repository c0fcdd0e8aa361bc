#pragma once

// The instruction sets that the vector kernels are compiled for: AVX2 with FMA, and AVX512. What Highway takes for the
// base line is never run on a machine below it: cpu::enabled() says no. Include before any header of Highway.
#if defined(__x86_64__)
#define HWY_BASELINE_TARGETS HWY_AVX2
#endif
