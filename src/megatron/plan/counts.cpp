#include "megatron/plan/counts.h"

#include <algorithm>

namespace megatron::plan {

std::int64_t parameter_count(const GptShape& shape) {
  std::int64_t count = 0;
  for (const ParameterSpec& spec : gpt_parameters(shape, 1, 0)) count += spec.size();
  return count;
}

ForwardFlops forward_flops(const GptShape& shape, std::int64_t sequences, std::int64_t seq_length) {
  const auto h = static_cast<double>(shape.hidden), ffn = static_cast<double>(shape.ffn_hidden);
  const auto queries = static_cast<double>(shape.query_rows()), qkv = static_cast<double>(shape.qkv_rows());
  const auto fc1 = static_cast<double>(shape.fc1_rows());
  const auto vocab = static_cast<double>(shape.padded_vocab), length = static_cast<double>(seq_length);
  const double tokens = static_cast<double>(sequences) * length;
  return {.layer_matrices = 2 * tokens * h * (qkv + queries + fc1 + ffn),
          .layer_fc1 = 2 * tokens * h * fc1,
          .layer_attention = (shape.is_bert() || shape.is_t5() ? 4 : 2) * tokens * length * queries,
          .output = shape.predicts_tokens() ? 2 * tokens * h * (shape.is_bert() ? vocab + h : vocab) : 0};
}

ForwardFlops decoder_flops(const GptShape& shape, std::int64_t sequences, std::int64_t decoder_length,
                           std::int64_t encoder_length) {
  ForwardFlops flops = forward_flops(shape, sequences, decoder_length);
  const auto h = static_cast<double>(shape.hidden), queries = static_cast<double>(shape.query_rows());
  const double tokens = static_cast<double>(sequences * decoder_length),
               keys = static_cast<double>(sequences * encoder_length);
  flops.layer_matrices += 2 * h * queries * (2 * tokens + 2 * keys);  // q and the projection; k and v
  flops.layer_attention = flops.layer_attention / 2 + 4 * tokens * static_cast<double>(encoder_length) * queries;
  return flops;
}

double training_flops(const GptShape& shape, std::int64_t sequences, std::int64_t seq_length,
                      std::int64_t decoder_length) {
  const auto layers = [](const ForwardFlops& flops, std::int64_t count) {
    return static_cast<double>(count) * (flops.layer_matrices + flops.layer_attention);
  };
  const ForwardFlops forward = forward_flops(shape, sequences, seq_length);
  if (!shape.is_t5()) return 3 * (layers(forward, shape.num_layers) + forward.output);
  const ForwardFlops decoder = decoder_flops(shape, sequences, decoder_length, seq_length);
  return 3 * (layers(forward, shape.encoder_layers) + layers(decoder, shape.num_layers - shape.encoder_layers) +
              decoder.output);
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

std::int64_t bucket_elements(const config::OptimizerConfig& optimizer, int dp) {
  if (!optimizer.overlap_grad_reduce) return 0;
  if (optimizer.bucket_size > 0) return optimizer.bucket_size;
  return std::max<std::int64_t>(40'000'000, std::int64_t{1'000'000} * dp);
}

}  // namespace megatron::plan
