#include "megatron/plan/cost/hardware.h"

#include <algorithm>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/text/nearest.h"
#include "megatron/config/options.h"

namespace megatron::plan {
namespace {

/// Gathers what is wrong with the values, so that the user sees all of it at once.
class Ranges {
 public:
  explicit Ranges(const std::string& name) : name_(name) {}

  void range(const std::string& key, double value, double low, double high, const char* example) {
    if (value >= low && value <= high) return;
    errors_ += concat(errors_.empty() ? "" : "\n",
                      rule_got_fix(concat(name_, ": ", key, " must be from ", low, " to ", high, "."), concat(value),
                                   concat(key.substr(key.find('.') + 1), " = ", example)));
  }
  void one_of(const std::string& key, const std::string& value, std::vector<std::string> choices) {
    if (std::ranges::find(choices, value) != choices.end()) return;
    std::erase(choices, "");  // what a key that is left out says
    errors_ += concat(errors_.empty() ? "" : "\n",
                      rule_got_fix(concat(name_, ": ", key, " must be one of ", listed(choices), "."), value,
                                   concat(key, " = \"", choices.front(), "\"")));
  }
  void share(const std::string& key, double value) { range(key, value, 1e-3, 1, "0.8"); }
  void finish() const {
    if (!errors_.empty()) throw ConfigError(errors_);
  }

 private:
  const std::string& name_;
  std::string errors_;
};

void check_link(Ranges& ranges, const std::string& section, const LinkRates& link) {
  ranges.range(section + ".bandwidth_gb_s", link.bandwidth_gb_s, 1e-3, 1e6, "100");
  ranges.share(section + ".efficiency", link.efficiency);
  ranges.range(section + ".latency_us", link.latency_us, 0, 1e6, "5");
}

void check_software(Ranges& ranges, const SoftwareCosts& software) {
  constexpr double kMaxValue = 1e4;
  ranges.range("software.launch_us", software.launch_us, 0, 1e6, "5");
  const auto count = [&](const char* key, double value) { ranges.range(key, value, 0, kMaxValue, "10"); };
  count("software.forward_launches", software.forward_launches);
  count("software.backward_launches", software.backward_launches);
  count("software.stream_forward_passes", software.stream_forward_passes);
  count("software.stream_backward_passes", software.stream_backward_passes);
  count("software.query_forward_passes", software.query_forward_passes);
  count("software.query_backward_passes", software.query_backward_passes);
  count("software.inner_forward_passes", software.inner_forward_passes);
  count("software.inner_backward_passes", software.inner_backward_passes);
  count("software.score_forward_passes", software.score_forward_passes);
  count("software.score_backward_passes", software.score_backward_passes);
  count("software.logit_bytes", software.logit_bytes);
  count("software.optimizer_bytes", software.optimizer_bytes);
  ranges.range("software.overlap_slowdown", software.overlap_slowdown, 0, 1, "0.05");
  ranges.range("software.speed_spread", software.speed_spread, 0, 1, "0.01");
}

}  // namespace

Hardware parse_hardware(const std::string& text, const std::string& name) {
  Hardware hardware;
  config::read_toml(config::fields_of(hardware), text, name);
  if (hardware.name.empty()) hardware.name = name;
  Ranges ranges(name);
  for (const config::Field& field : config::fields_of(hardware).fields)
    if (!field.meaning.choices.empty())
      ranges.one_of(field.path, *std::get<std::string*>(field.value), field.meaning.choices);
  ranges.range("ranks_per_node", static_cast<double>(hardware.ranks_per_node), 1, 1 << 16, "8");
  const ComputeRates& compute = hardware.compute;
  const double best = std::max({compute.fp64_tflops, compute.fp32_tflops, compute.bf16_tflops, compute.fp16_tflops});
  for (const auto& [key, value] :
       {std::pair("compute.fp64_tflops", compute.fp64_tflops), std::pair("compute.fp32_tflops", compute.fp32_tflops),
        std::pair("compute.bf16_tflops", compute.bf16_tflops), std::pair("compute.fp16_tflops", compute.fp16_tflops),
        std::pair("compute.fp8_tflops", compute.fp8_tflops)})
    if (value != 0) ranges.range(key, value, 1e-6, 1e6, "100");
  if (compute.capability != 0) ranges.range("compute.capability", compute.capability, 1, 99, "9.0");
  if (best == 0) ranges.range("compute.bf16_tflops", 0, 1e-6, 1e6, "100");
  ranges.share("compute.product_efficiency", compute.product_efficiency);
  ranges.range("compute.product_half_size", compute.product_half_size, 0, 1e6, "300");
  for (const auto& [key, value] :
       {std::pair("compute.attention_forward_efficiency", compute.attention_forward_efficiency),
        std::pair("compute.attention_backward_efficiency", compute.attention_backward_efficiency)})
    if (value != 0) ranges.share(key, value);
  ranges.range("memory.capacity_gb", hardware.memory.capacity_gb, 1e-3, 1e6, "80");
  ranges.range("memory.bandwidth_gb_s", hardware.memory.bandwidth_gb_s, 1e-3, 1e6, "1000");
  ranges.share("memory.efficiency", hardware.memory.efficiency);
  check_link(ranges, "node", hardware.node);
  check_link(ranges, "cluster", hardware.cluster);
  check_software(ranges, hardware.software);
  ranges.finish();
  return hardware;
}

double peak_flops(const Hardware& hardware, const std::string& dtype) {
  const ComputeRates& compute = hardware.compute;
  const double tflops = dtype == "fp64"   ? compute.fp64_tflops
                        : dtype == "fp32" ? compute.fp32_tflops
                        : dtype == "bf16" ? compute.bf16_tflops
                        : dtype == kFp8   ? compute.fp8_tflops
                                          : compute.fp16_tflops;
  if (tflops > 0) return tflops * 1e12;
  const std::string rate = concat(dtype, "_tflops in its [compute]");
  std::string fix = rate;
  for (const auto& [offered, rate_of] :
       {std::pair("fp64", compute.fp64_tflops), std::pair("fp32", compute.fp32_tflops),
        std::pair("fp16", compute.fp16_tflops), std::pair("bf16", compute.bf16_tflops)})
    if (rate_of > 0) fix = concat("--train.dtype ", offered, ", or ", rate);
  throw ConfigError(rule_got_fix(concat("the hardware ", hardware.name, " must compute in train.dtype."), dtype, fix));
}

}  // namespace megatron::plan
