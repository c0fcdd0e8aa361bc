#include "megatron/plan/cost/counts.h"

#include <algorithm>

#include "megatron/plan/parameters/adapters.h"

namespace megatron::plan {

std::int64_t parameter_count(const ModelShape& shape) {
  std::int64_t count = 0;
  for (const ParameterSpec& spec : model_parameters(shape, 1, 0)) count += spec.size();
  return count;
}

namespace {

double as_double(std::int64_t value) { return static_cast<double>(value); }

double attention_flops(const SelfAttention& attention, const LayerTokens& tokens) {
  // Of scores and of values; what pads heads of latents to one width is no part of the model.
  const std::int64_t scores = attention.latents ? attention.heads * attention.latents->query() : attention.query_rows();
  return 2 * as_double(tokens.sequences * tokens.length) * as_double(tokens.length) *
         seen_share(attention, tokens.length) * as_double(scores + attention.value_rows());
}
double attention_flops(const CrossAttention& attention, const LayerTokens& tokens) {
  return 4 * as_double(tokens.sequences * tokens.length) * as_double(tokens.encoder_length) *
         as_double(attention.query_rows());
}
double attention_flops(const Mlp& /*mlp*/, const LayerTokens& /*tokens*/) { return 0; }
double attention_flops(const Experts& /*experts*/, const LayerTokens& /*tokens*/) { return 0; }

}  // namespace

LayerTokens tokens_of(const LayerSpec& layer, std::int64_t sequences, std::int64_t seq_length,
                      std::int64_t decoder_length) {
  return {.sequences = sequences,
          .length = layer.decoder ? decoder_length : seq_length,
          .encoder_length = layer.cross_attention() ? seq_length : 0};
}

LayerFlops layer_flops(const LayerSpec& layer, const LayerTokens& tokens) {
  LayerFlops flops;
  for (const Branch& branch : layer.branches) {
    for (const Linear& linear : branch.kinds(layer.hidden)) {
      const std::int64_t rows = tokens.sequences * (linear.reads_encoder ? tokens.encoder_length : tokens.length);
      const double product =
          2 * as_double(rows * linear.alike) * linear.share * as_double(linear.outputs) * as_double(linear.inputs);
      flops.matrices += product;
      if (linear.name.ends_with(".linear_fc1")) flops.fc1 += product;
    }
    flops.attention += std::visit([&](const auto& inner) { return attention_flops(inner, tokens); }, branch.inner);
  }
  return flops;
}

LayerFlops depth_flops(const PredictionDepth& depth, const LayerTokens& tokens) {
  LayerFlops flops = layer_flops(depth.layer, tokens);
  const Linear projection = depth.projection();
  flops.matrices +=
      2 * as_double(tokens.sequences * tokens.length) * as_double(projection.outputs) * as_double(projection.inputs);
  return flops;
}

double output_flops(const ModelShape& shape, std::int64_t tokens) {
  if (!shape.predicts_tokens()) return 0;
  const std::int64_t rows = shape.masked_lm_head ? shape.padded_vocab + shape.hidden : shape.padded_vocab;
  return 2 * as_double(tokens) * as_double(shape.hidden) * as_double(rows);
}

double training_flops(const ModelShape& shape, std::int64_t sequences, std::int64_t seq_length,
                      std::int64_t decoder_length) {
  double matrices = output_flops(shape, sequences * (shape.encoder_decoder() ? decoder_length : seq_length));
  double others = 0;
  for (std::int64_t l = 0; l < shape.num_layers; ++l) {
    const LayerSpec layer = shape.layer(l);
    const LayerTokens tokens = tokens_of(layer, sequences, seq_length, decoder_length);
    const LayerFlops flops = layer_flops(layer, tokens);
    const AdapterFlops adapters = adapter_flops(shape, l, sequences * tokens.length, sequences * tokens.encoder_length);
    matrices += flops.matrices + adapters.weights;
    others += flops.attention + adapters.own;
  }
  for (std::int64_t k = 0; k < shape.mtp_depths; ++k) {
    const LayerFlops flops = depth_flops(shape.prediction_depth(k), {.sequences = sequences, .length = seq_length});
    matrices += flops.matrices + output_flops(shape, sequences * seq_length);
    others += flops.attention;
  }
  // Of weights that are not trained the gradient is not computed.
  return (shape.lora ? 2 : 3) * matrices + 3 * others;
}

double paper_activation_bytes(double s, double b, double h, double a, double t, bool sequence_parallel,
                              Recomputation recomputation) {
  if (recomputation == Recomputation::Full) return 2 * s * b * h;
  const double scores = recomputation == Recomputation::Selective ? 0 : 5 * a * s / h;
  return s * b * h * (sequence_parallel ? (34 + scores) / t : 10 + (24 + scores) / t);
}

std::int64_t element_bytes(const config::RunConfig& config) {
  return config.train.dtype == "fp64" ? 8 : config.train.dtype == "fp32" ? 4 : 2;
}

std::int64_t stream_element_bytes(const config::RunConfig& config) {
  return config.model.fp32_residual_connection ? std::max<std::int64_t>(element_bytes(config), 4)
                                               : element_bytes(config);
}

std::int64_t bucket_elements(const config::OptimizerConfig& optimizer, int dp) {
  if (!optimizer.overlap_grad_reduce) return 0;
  if (optimizer.bucket_size > 0) return optimizer.bucket_size;
  return std::max<std::int64_t>(40'000'000, std::int64_t{1'000'000} * dp);
}

}  // namespace megatron::plan
