#pragma once
#include <cstddef>
#include <string>

namespace megatron::config {

/// The row of models/kinds.def that model.architecture names, by which each folder looks up its own constants of the
/// kind; the first for a name that is none, which the rules refuse.
std::size_t model_kind_row(const std::string& architecture);

}  // namespace megatron::config
