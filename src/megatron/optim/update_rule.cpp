#include "megatron/optim/update_rule.h"

#include <stdexcept>

namespace megatron::optim {

std::unique_ptr<UpdateRule> make_rule(const config::OptimizerConfig& optimizer) {
#define OPTIMIZER(row, paper, ...) \
  if (optimizer.name == #row) return row##_rule(optimizer);
#include "megatron/config/optimizers.def"
  throw std::out_of_range("no optimizer is named " + optimizer.name);
}

}  // namespace megatron::optim
