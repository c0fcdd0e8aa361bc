#pragma once

/// Stands after the parameters of a lambda for for_vectors (math-inl.h) in place of HWY_ATTR. Inlined twice, into the
/// loop over whole vectors and into its rest: otherwise g++ makes one function of both, and every vector pays for the
/// call, the test of `lanes` and the constants.
#define VECTOR_BODY HWY_ATTR __attribute__((always_inline))
