#pragma once
#include <vector>

namespace megatron {

/// Numbers of the processors that this process may run on, ascending, as they were at the first call: one of its
/// threads may have been bound to a single one since. At least one.
const std::vector<int>& core_numbers();

inline int usable_cores() { return static_cast<int>(core_numbers().size()); }

}  // namespace megatron
