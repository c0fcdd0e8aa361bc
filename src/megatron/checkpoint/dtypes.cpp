#include "megatron/checkpoint/dtypes.h"

#include <stdexcept>

namespace megatron::checkpoint {

std::string dtype_name(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return "F64";
    case at::kFloat:
      return "F32";
    case at::kHalf:
      return "F16";
    case at::kBFloat16:
      return "BF16";
    case at::kLong:
      return "I64";
    case at::kInt:
      return "I32";
    case at::kShort:
      return "I16";
    case at::kChar:
      return "I8";
    case at::kByte:
      return "U8";
    case at::kBool:
      return "BOOL";
    default:
      throw std::invalid_argument(std::string("a checkpoint cannot hold tensors of dtype ") + c10::toString(type));
  }
}

}  // namespace megatron::checkpoint
