#include "megatron/plan/parameters/fp8.h"

#include <algorithm>
#include <cmath>

#include "megatron/base/error.h"
#include "megatron/plan/rule_list.h"

namespace megatron::plan {

std::optional<Fp8Recipe> fp8_recipe(const config::Fp8Config& fp8) {
  if (fp8.format == "none") return std::nullopt;
  const Fp8Type gradients = fp8.format == "hybrid" ? Fp8Type::E5M2 : Fp8Type::E4M3;
  if (fp8.recipe == "tensorwise")
    return Fp8Recipe{.gradients = gradients, .current = true, .history = 0, .weight_gradients = fp8.wgrad};
  return Fp8Recipe{.gradients = gradients,
                   .margin = fp8.margin,
                   .history = fp8.amax_history_len,
                   .largest_of_history = fp8.amax_compute_algo == "max",
                   .weight_gradients = fp8.wgrad};
}

double fp8_scale(double amax, Fp8Type type, std::int64_t margin, double previous) {
  if (!(amax > 0) || !std::isfinite(amax)) return previous;
  constexpr std::int64_t kMost = 126;  // so that the inverse is no denormal of float32 either
  const std::int64_t exponent = std::ilogb(largest_of(type) / amax);
  return std::ldexp(1.0, static_cast<int>(std::clamp(exponent - margin, -kMost, kMost)));
}

std::vector<std::string> fp8_layers(const ModelShape& shape) {
  std::vector<std::string> names;
  const auto add = [&](const LayerSpec& layer) {
    if (layer.wide) return;
    for (const Branch& branch : layer.branches)
      for (const Linear& linear : branch.linears(layer.hidden)) names.push_back(layer.prefix + linear.name);
  };
  for (std::int64_t number = 0; number < shape.num_layers; ++number) add(shape.layer(number));
  for (std::int64_t depth = 0; depth < shape.mtp_depths; ++depth) add(shape.prediction_depth(depth).layer);
  return names;
}

std::int64_t fp8_state_bytes(const Fp8Recipe& recipe, std::int64_t layers, bool on_gpu) {
  constexpr std::int64_t kNumberBytes = 4, kBesideUnits = 2;
  if (recipe.current) return layers * (kFp8Operands + 2) * kNumberBytes;
  const std::int64_t host = 1 + recipe.history;  // scales, and the magnitudes of the steps before
  return (kBesideUnits + (on_gpu ? 0 : host)) * layers * kFp8Operands * kNumberBytes;
}

void check_fp8(const config::RunConfig& config, Rules& rules) {
  const config::Fp8Config& fp8 = config.fp8;
  constexpr const char* kOff = "--fp8-format none (the default)";
  rules.choices("fp8", fp8);
  rules.range<std::int64_t>("fp8.margin", fp8.margin, 0, 64);
  rules.range<std::int64_t>("fp8.amax_history_len", fp8.amax_history_len, 1, 1 << 14);
  if (fp8.format == "none") return;
  const config::ModelConfig& model = config.model;
  rules.require(model.num_experts == 0, "Experts compute in train.dtype alone: fp8.format excludes model.num_experts.",
                concat("num_experts ", model.num_experts), kOff);
  rules.require(
      !model.multi_latent_attention,
      "Latent attention has parts of gradients on each rank, whose scales would follow the layout: fp8.format "
      "excludes model.multi_latent_attention.",
      "multi_latent_attention true", kOff);
  if (fp8.first_last_layers_bf16) {
    const std::int64_t first = fp8.num_layers_at_start_in_bf16, last = fp8.num_layers_at_end_in_bf16;
    const std::int64_t layers = std::max(model.num_layers, model.decoder_num_layers);  // of the longer stack
    rules.range<std::int64_t>("fp8.num_layers_at_start_in_bf16", first, 0, layers);
    rules.range<std::int64_t>("fp8.num_layers_at_end_in_bf16", last, 0, layers);
    rules.require(first + last < layers || first > layers || last > layers,
                  "Some layers must be left to compute in 8 bits.",
                  concat(first, " first and ", last, " last layers in train.dtype of ", layers),
                  "--first-last-layers-bf16 false (the default)");
  }
  rules.require(config.lora.rank <= 0, "fp8.format excludes lora.rank: adapters read what layers read in full.",
                concat("lora.rank ", config.lora.rank), kOff);
  rules.require(config.dpo.beta <= 0,
                "fp8.format excludes dpo.beta: the reference would be computed by other scales than the steps.",
                concat("dpo.beta ", config.dpo.beta), kOff);
  const std::int64_t groups = model.num_query_groups > 0 ? model.num_query_groups : model.num_attention_heads;
  const int tp = config.parallel.tp;
  rules.require(tp <= groups || groups < 1,
                "Ranks that share a key and value head have parts of its gradient, whose scales would follow the "
                "layout: with fp8.format parallel.tp must be at most model.num_query_groups.",
                concat("tp ", tp, ", ", groups, " groups"), concat("--tp ", groups));
}

void require_fp8_units(int major, int minor) {
  if (major > 8 || (major == 8 && minor >= 9)) return;
  throw ConfigError(
      rule_got_fix("fp8.format needs a GPU that multiplies 8-bit numbers: of compute capability 8.9 (Ada) or more.",
                   concat("compute capability ", major, ".", minor), "--fp8-format none (the default)"));
}

}  // namespace megatron::plan
