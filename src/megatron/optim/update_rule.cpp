#include "megatron/optim/update_rule.h"

#include <stdexcept>

namespace megatron::optim {

at::Tensor UpdateRule::direction(const Views& /*views*/, const kernels::Update& /*update*/) const {
  throw std::logic_error("this rule takes no matrices");
}
at::Tensor UpdateRule::matrix_update(const at::Tensor& /*direction*/) const {
  throw std::logic_error("this rule takes no matrices");
}

std::unique_ptr<UpdateRule> make_rule(const config::OptimizerConfig& optimizer) {
#define OPTIMIZER(row, paper, ...) \
  if (optimizer.name == #row) return row##_rule(optimizer);
#include "megatron/config/optimizers.def"
  throw std::out_of_range("no optimizer is named " + optimizer.name);
}

}  // namespace megatron::optim
