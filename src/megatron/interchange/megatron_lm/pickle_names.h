#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace megatron::interchange {

/// "REDUCE (0x52)": an opcode's name in Python's pickletools, or its number alone.
std::string opcode_name(std::uint8_t opcode);

/// safetensors' dtype of "torch.FloatStorage"; nullptr for any other name.
const char* storage_dtype(std::string_view name);

/// What a name of Python makes of its arguments here.
enum class NameMeaning : std::uint8_t {
  Unknown,    ///< refused
  Value,      ///< a value by itself: a dtype, a class that stands in the arguments of others
  Dict,       ///< OrderedDict: an argument would be a list of pairs
  Namespace,  ///< a dictionary whose state is its entries
  Tuple,      ///< torch.Size
  Tensor,     ///< torch._utils._rebuild_tensor_v2
  OfType,     ///< torch._tensor._rebuild_from_type_v2: a tensor with attributes, which nobody needs
  First,      ///< a wrapper whose first argument is all that matters: a Parameter
  Object      ///< inert data
};
NameMeaning meaning_of(std::string_view name);

}  // namespace megatron::interchange
