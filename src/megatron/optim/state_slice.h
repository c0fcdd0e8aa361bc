#pragma once
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace megatron::optim {

/// A part of what an optimizer keeps of one parameter on this rank; a checkpoint stores these and fills them again, in
/// any layout, for an optimizer of the same name. A distributed optimizer gives the ranges that this
/// rank owns, a plain one whole slices.
struct StateSlice {
  /// "exp_avg", "exp_avg_sq", "momentum_buffer", …; empty: the weight itself as the optimizer updates it, the fp32
  /// master where there is one, else the owned range of the values. It is what a checkpoint stores of the weight.
  std::string kind;
  std::size_t parameter = 0;  ///< index into ParameterStore::all()
  std::int64_t begin = 0;     ///< first element, of this rank's slice of the parameter in row-major order
  at::Tensor flat;            ///< [n], a view: elements begin … begin + n. Changes in the optimizer's step alone.
};

}  // namespace megatron::optim
