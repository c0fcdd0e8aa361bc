#pragma once
#include <gtest/gtest.h>

#include "megatron/base/machine/gpu.h"
#include "megatron/parallel/cuda.h"

/// First line of a test that needs a GPU: skips it where there is none, else makes ATen, and the table of operators,
/// run on cuda.
#define NEEDS_A_GPU()                                              \
  if (!::megatron::gpu_present()) GTEST_SKIP() << "no NVIDIA GPU"; \
  ::megatron::parallel::load_cuda()
