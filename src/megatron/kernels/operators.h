#pragma once
#include <cstddef>
#include <utility>
#include <vector>

#include "megatron/kernels/activation.h"
#include "megatron/kernels/attention.h"
#include "megatron/kernels/cross_entropy.h"
#include "megatron/kernels/dropout.h"
#include "megatron/kernels/embedding.h"
#include "megatron/kernels/experts.h"
#include "megatron/kernels/fp8/fp8.h"
#include "megatron/kernels/matmul.h"
#include "megatron/kernels/normalization.h"
#include "megatron/kernels/optimizer.h"
#include "megatron/kernels/rope.h"

// What devices implement, as a table: a member for each operator of operators.def, which has the contract of the public
// function of its name. A new device is a new table; a new operator is a row and its reference.
namespace megatron::kernels {

struct Operators {
#define OPERATOR(result, name, parameters, ...) result(*name) parameters = nullptr;
#include "megatron/kernels/operators.def"
};

/// Plain ATen on any device: the truth.
const Operators& reference_operators();
/// This CPU's, by the instruction set that runtime.h chooses; the reference's where that is "reference".
const Operators& cpu_operators();
/// CUDA's: the plugin's members, and the reference's for those that it leaves null; all the reference's without one.
const Operators& cuda_operators();

/// Takes the plugin's table, which must last. `size`: sizeof(Operators) where the plugin was compiled. Throws
/// ConfigError where that is another.
void set_cuda_operators(const Operators& plugin, std::size_t size);

/// The table for tensors on `device`.
const Operators& on(at::Device device);
inline const Operators& on(const at::Tensor& x) { return on(x.device()); }

/// Which implementation serves an operator, for people.
struct OperatorInfo {
  const char* name;
  std::vector<std::pair<at::ScalarType, bool>> on_cpu;  ///< dtype, and whether by our own kernels
  std::vector<at::ScalarType> on_cuda = {};             ///< those that the plugin computes by its own; none without it
};
std::vector<OperatorInfo> operator_list();

}  // namespace megatron::kernels
