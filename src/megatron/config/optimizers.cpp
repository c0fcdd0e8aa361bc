#include "megatron/config/optimizers.h"

#include <algorithm>
#include <stdexcept>

#include "megatron/config/optimizer_config.h"

namespace megatron::config {

const std::vector<OptimizerInfo>& optimizers() {
  static const std::vector<OptimizerInfo> rows = {
#define OPTIMIZER(name, paper, ...) \
  {#name, paper, []([[maybe_unused]] const OptimizerConfig& o) { return __VA_ARGS__; }},
#include "megatron/config/optimizers.def"
  };
  return rows;
}

const OptimizerInfo& optimizer_info(const std::string& name) {
  const auto found = std::ranges::find(optimizers(), name, &OptimizerInfo::name);
  if (found == optimizers().end()) throw std::out_of_range("no optimizer is named " + name);
  return *found;
}

std::vector<std::string> optimizer_names() {
  std::vector<std::string> names;
  for (const OptimizerInfo& info : optimizers()) names.push_back(info.name);
  return names;
}

std::string optimizers_help() {
  std::string text;
  for (const OptimizerInfo& info : optimizers())
    text += (text.empty() ? "" : ", ") + info.name + " (" + info.paper + ")";
  return text + ".";
}

const std::vector<OptimizerOption>& optimizer_options() {
  static const std::vector<OptimizerOption> rows = {
#define OPTIMIZER_OPTION(name, type, option, default_value, bounds, help, flag) \
  {#name, "optimizer." #option, [](const OptimizerConfig& o) { return static_cast<double>(o.option); }, Bounds::bounds},
#include "megatron/config/optimizers.def"
  };
  return rows;
}

}  // namespace megatron::config
