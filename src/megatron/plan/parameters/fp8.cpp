#include "megatron/plan/parameters/fp8.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "megatron/base/error.h"
#include "megatron/plan/rule_list.h"

namespace megatron::plan {

std::optional<Fp8Recipe> fp8_recipe(const config::Fp8Config& fp8) {
  if (fp8.format == "none") return std::nullopt;
  const Fp8Type gradients = fp8.format == "hybrid" ? Fp8Type::E5M2 : Fp8Type::E4M3;
  if (fp8.recipe != "delayed")
    return Fp8Recipe{.gradients = gradients,
                     .scales = fp8.recipe == "tensorwise"  ? Fp8Scales::Tensor
                               : fp8.recipe == "blockwise" ? Fp8Scales::Block
                                                           : Fp8Scales::Mx,
                     .history = 0,
                     .weight_gradients = fp8.wgrad};
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

namespace {

/// Calls use(layer, linear) for the linear layers that compute in 8 bits, in the order of fp8_layers().
template <class Use>
void for_each_fp8_linear(const ModelShape& shape, const Use& use) {
  const auto of = [&](const LayerSpec& layer) {
    if (layer.wide) return;
    for (const Branch& branch : layer.branches)
      for (const Linear& linear : branch.linears(layer.hidden)) use(layer, linear);
  };
  for (std::int64_t number = 0; number < shape.num_layers; ++number) of(shape.layer(number));
  for (std::int64_t depth = 0; depth < shape.mtp_depths; ++depth) of(shape.prediction_depth(depth).layer);
}

}  // namespace

std::vector<std::string> fp8_layers(const ModelShape& shape) {
  std::vector<std::string> names;
  for_each_fp8_linear(
      shape, [&](const LayerSpec& layer, const Linear& linear) { names.push_back(layer.prefix + linear.name); });
  return names;
}

std::int64_t fp8_state_bytes(const Fp8Recipe& recipe, std::int64_t layers, bool on_gpu) {
  constexpr std::int64_t kNumberBytes = 4, kBesideUnits = 2;
  if (recipe.in_blocks()) return 0;
  if (!recipe.delayed()) return layers * (kFp8Operands + 2) * kNumberBytes;
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

namespace {

/// The features of `linear` that the tensor-parallel ranks divide; of a gated unit's matrix those of one half.
std::int64_t divided_features(const Linear& linear) {
  if (linear.split == Linear::Split::Inputs) return linear.inputs;
  return linear.split == Linear::Split::Halves ? linear.outputs / 2 : linear.outputs;
}

}  // namespace

void check_fp8_blocks(const config::RunConfig& config, const ModelShape& shape, Rules& rules) {
  const auto recipe = fp8_recipe(config.fp8);
  if (!recipe || !recipe->in_blocks()) return;
  const config::ParallelConfig& parallel = config.parallel;
  const std::int64_t block = recipe->block();
  const std::string scaled = concat("fp8.recipe ", config.fp8.recipe, " scales blocks of ", block);
  rules.require(parallel.device != "cuda" || recipe->gradients == Fp8Type::E4M3,
                concat("libtorch's products of blocks on a GPU read E4M3 alone: with parallel.device cuda fp8.recipe ",
                       config.fp8.recipe, " excludes fp8.format hybrid."),
                "fp8.format hybrid, parallel.device cuda", "--fp8-format e4m3");
  std::vector<std::string> cut;
  for_each_fp8_linear(shape, [&](const LayerSpec& layer, const Linear& linear) {
    const std::int64_t size = divided_features(linear);
    if (parallel.tp > 1 && size % (parallel.tp * block) != 0)
      cut.push_back(concat(size, " features of ", layer.prefix, linear.name, ", tp ", parallel.tp));
  });
  rules.require(
      cut.empty(),
      concat(scaled, " features: of what parallel.tp divides, each rank must have a multiple of ", block, "."),
      cut.empty() ? "" : cut.front(), "--fp8-recipe tensorwise");
  if (parallel.cp <= 1 || !recipe->weight_gradients) return;  // these alone sum over tokens
  const auto require_tokens = [&](const char* option, const char* flag, std::int64_t tokens) {
    const std::int64_t unit = 2 * parallel.cp * block;
    rules.require(tokens % unit == 0,
                  concat(scaled, " tokens: ", option,
                         " must give each of the two chunks of a rank of parallel.cp a multiple of ", block, "."),
                  concat(tokens, " tokens, cp ", parallel.cp), concat(flag, " ", next_multiple(tokens, unit)));
  };
  require_tokens("data.seq_length", "--seq-length", config.data.seq_length);
  if (shape.encoder_decoder())
    require_tokens("data.decoder_seq_length", "--data.decoder_seq_length", config.data.decoder_seq_length);
}

void require_fp8_units(const Fp8Recipe& recipe, int major, int minor, std::optional<std::int64_t> cuda,
                       const std::string& gpu) {
  constexpr const char *kOff = "--fp8-format none (the default)", *kOther = "--fp8-recipe tensorwise";
  constexpr std::int64_t kCuda12_8 = 12080, kCuda12_9 = 12090;
  const std::string got = concat(gpu, gpu.empty() ? "" : ", ", "compute capability ", major, ".", minor);
  if (major < 8 || (major == 8 && minor < 9))
    throw ConfigError(rule_got_fix(
        "fp8.format needs a GPU that multiplies 8-bit numbers: of compute capability 8.9 (Ada) or more.", got, kOff));
  if (!recipe.in_blocks()) return;
  const bool mx = recipe.scales == Fp8Scales::Mx;
  const std::string needs = concat("fp8.recipe ", mx ? "mxfp8" : "blockwise", " needs ");
  if (mx ? major < 10 : major != 9)
    throw ConfigError(
        rule_got_fix(concat(needs, "a GPU of compute capability ", mx ? "10.0 (Blackwell) or more" : "9.0 (Hopper)",
                            ", whose products cuBLAS scales by such blocks."),
                     got, kOther));
  if (cuda && *cuda < (mx ? kCuda12_8 : kCuda12_9))
    throw ConfigError(rule_got_fix(concat(needs, "libtorch for CUDA ", mx ? "12.8" : "12.9", " or later."),
                                   concat("libtorch for CUDA ", *cuda / 1000, ".", *cuda % 1000 / 10), kOther));
}

}  // namespace megatron::plan
