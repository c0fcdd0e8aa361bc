#include "megatron/kernels/operators.h"

// The plugin's table. A kernel for CUDA is a .cu file here and a member below; what is null the reference computes, by
// ATen's kernels.
namespace megatron::kernels {
namespace {

constexpr Operators kCudaOperators = {};

}  // namespace

/// Looked up by parallel::load_cuda(). `size`: set to that of the table.
extern "C" const Operators* megatron_cuda_operators(std::size_t* size) {
  *size = sizeof(Operators);
  return &kCudaOperators;
}

}  // namespace megatron::kernels
