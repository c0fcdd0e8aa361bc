#include "megatron/config/optimizers.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <stdexcept>
#include <string_view>

#include "megatron/config/optimizer_config.h"

namespace megatron::config {

const std::vector<OptimizerInfo>& optimizers() {
  static const std::vector<OptimizerInfo> rows = {
#define OPTIMIZER(name, paper, ...) \
  {#name, paper, []([[maybe_unused]] const OptimizerConfig& o, [[maybe_unused]] bool matrix) { return __VA_ARGS__; }},
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

StateNames state_names(const OptimizerConfig& optimizer) {
  const OptimizerInfo& info = optimizer_info(optimizer.name);
  StateNames names = info.state(optimizer, true);
  for (const std::string& name : info.state(optimizer, false))
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  return names;
}

std::string optimizers_help() {
  std::string text;
  for (const OptimizerInfo& info : optimizers())
    text += (text.empty() ? "" : ", ") + info.name + " (" + info.paper + ")";
  return text + ".";
}

std::optional<double> norm_order(const std::string& name) {
  if (name == "inf") return std::numeric_limits<double>::infinity();
  const std::string_view number = std::string_view(name).substr(name.starts_with('l') ? 1 : 0);
  double order = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), order);
  const bool whole = error == std::errc() && end == number.data() + number.size();
  return whole && order >= 1 && order <= 1e6 ? std::optional(order) : std::nullopt;
}

const std::vector<OptimizerOption>& optimizer_options() {
  static const std::vector<OptimizerOption> all = [] {
    std::vector<OptimizerOption> rows = {
#define OPTIMIZER_OPTION(name, type, option, default_value, bounds, help, flag) \
  {{#name},                                                                     \
   "optimizer." #option,                                                        \
   [](const OptimizerConfig& o) { return static_cast<double>(o.option); },      \
   Bounds::bounds},
#include "megatron/config/optimizers.def"
    };
    const auto use = [&](const std::string& name, const std::string& other) {
      for (OptimizerOption& option : rows)
        if (option.readers.front() == other) option.readers.push_back(name);
    };
#define OPTIMIZER_USES(name, other) use(#name, #other);
#include "megatron/config/optimizers.def"
    return rows;
  }();
  return all;
}

const std::vector<std::string>& readers_of(const std::string& path) {
  for (const OptimizerOption& option : optimizer_options())
    if (path == option.path) return option.readers;
  throw std::out_of_range("no optimizer's option is named " + path);
}

}  // namespace megatron::config
