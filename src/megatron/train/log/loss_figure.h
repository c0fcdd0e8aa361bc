#pragma once
#include <string>

namespace megatron::train {

/// What a loss of one's own reports besides itself (ForwardStep::figures): a mean over what the loss is a mean over.
struct LossFigure {
  std::string name;
  double value = 0;
};

}  // namespace megatron::train
