#include "megatron/model/stage_modules.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/plan/parameters/output_bias.h"

namespace megatron::model {
namespace {

constexpr const char* kPositionEmbedding = "embedding.position_embeddings.weight";
constexpr const char* kTypeEmbedding = "embedding.tokentype_embeddings.weight";

}  // namespace

StageModules::StageModules(const TransformerOptions& options, const plan::StageSpec& part,
                           const parallel::ParameterStore& parameters, const comm::Group& tp)
    : max_positions_(options.rope.rotary_dim > 0 && options.rope_positions > 0 ? options.rope_positions
                                                                               : options.shape.max_positions),
      position_offset_(options.shape.position_offset),
      output_scale_(options.shape.output_scale),
      embedding_scale_(options.shape.embedding_scale),
      stream_(stream_options(options.shape, parameters.options()).dtype().toScalarType()) {
  const bool split = options.sequence_parallel;
  const auto& shape = options.shape;
  const at::ScalarType dtype = parameters.dtype();
  const at::Device device = parameters.options().device();
  const std::int64_t depths_here = part.output ? shape.mtp_depths : 0;
  const bool has_layers = part.num_layers + depths_here > 0;
  if (options.rope.rotary_dim > 0 && has_layers)
    rope = kernels::rope_table(options.rope, max_positions_, dtype, device);
  if (options.local_rope.rotary_dim > 0 && has_layers)
    local_rope = kernels::rope_table(options.local_rope, max_positions_, dtype, device);
  if (shape.root_scaled_words) {  // a number of the model's dtype, as the embeddings are
    const auto root = at::scalar_tensor(std::sqrt(static_cast<double>(shape.hidden)), dtype);
    embedding_scale_ *= root.item<double>();
  }
  using parallel::VocabParallelEmbedding;
  if (part.embedding || plan::begins_decoder(shape, part) || depths_here > 0)
    words.emplace(parameters.get(plan::kWordEmbedding), shape.vocab, "token id", tp,
                  VocabParallelEmbedding::Options{split});
  if ((part.embedding || depths_here > 0) && shape.learned_positions)
    positions.emplace(parameters.get(kPositionEmbedding), position_offset_ + shape.max_positions, "position id", tp,
                      VocabParallelEmbedding::Options{split});
  if (part.embedding && shape.token_types > 0)
    types.emplace(parameters.get(kTypeEmbedding), shape.token_types, "token type", tp,
                  VocabParallelEmbedding::Options{split});
  const Block::Options block{.epsilon = options.layernorm_epsilon,
                             .activation = options.activation,
                             .sequence_parallel = split,
                             .keep_activation = !options.recompute.gelu,
                             .recompute_mlp = options.recompute.mlp,
                             .experts = options.experts,
                             .expert_slices = options.expert_slices,
                             .lora = shape.lora,
                             .kept = options.kept,
                             .seed = options.seed,
                             .sequence = options.sequence.share(),
                             .sequence_ranks = options.sequence.ranks,
                             .fp8 = options.fp8};
  for (std::int64_t l = part.first_layer; l < part.first_layer + part.num_layers; ++l) {
    blocks.emplace_back(parameters, shape.layer(l), block, tp);
    if (l + 1 == shape.encoder_layers)
      encoder_norm = norm_of(parameters, "encoder.final_layernorm.", {options.layernorm_epsilon, shape});
    if (shape.position_buckets == 0) continue;
    auto& bias = shape.in_encoder(l) ? encoder_bias : decoder_bias;
    if (!bias)
      bias.emplace(parameters.get(plan::ModelShape::position_table(shape.in_encoder(l))), shape.in_encoder(l),
                   shape.position_max_distance);
  }
  for (std::int64_t k = 0; k < depths_here; ++k) depths.emplace_back(parameters, shape.prediction_depth(k), block, tp);
  if (!part.output) return;
  final_norm = norm_of(parameters, shape.stack() + "final_layernorm.", {options.layernorm_epsilon, shape});
  if (!shape.predicts_tokens()) {
    task_head.emplace(parameters, shape, tp, split);
    return;
  }
  if (shape.masked_lm_head) heads.emplace(parameters, shape, options.layernorm_epsilon, tp, split);
  output.emplace(parameters.get(shape.tied_output ? plan::kWordEmbedding : plan::kOutputMatrix), tp,
                 parallel::VocabParallelOutput::Options{.vocab = shape.vocab,
                                                        .soft_cap = shape.logit_soft_cap,
                                                        .label_smoothing = options.label_smoothing,
                                                        .chunk_tokens = options.loss_chunk_tokens,
                                                        .sequence_parallel = split},
                 plan::has_output_bias(shape) ? parameters.get("output_layer.bias") : nullptr);
}

at::Tensor StageModules::embed(const at::Tensor& tokens_sb, const at::Tensor& positions_sb, const at::Tensor& types_sb,
                               const HostIds& host) const {
  auto x = words->forward(tokens_sb, host.tokens_sb);
  if (positions) {
    const auto rows_of = [&](const at::Tensor& ids) {
      return position_offset_ > 0 && ids.defined() ? ids.add(position_offset_) : ids;
    };
    x = x.add(positions->forward(rows_of(positions_sb), rows_of(host.positions_sb)));
  }
  if (types) x = x.add(types->forward(types_sb.defined() ? types_sb : at::zeros_like(tokens_sb), host.types_sb));
  if (embedding_scale_ != 1) x = x.mul(embedding_scale_);
  return x.to(stream_);
}

Normed StageModules::run(const at::Tensor& x_sbh, const AttentionOf& attention) const {
  const Norm* end = final_norm ? &*final_norm : nullptr;
  if (blocks.empty()) return end == nullptr ? Normed{x_sbh, {}, {}} : normalized(x_sbh, *end);
  auto stream = normalized(x_sbh, blocks[0].input_norm());
  for (std::size_t l = 0; l < blocks.size(); ++l)
    stream = blocks[l].forward(std::move(stream), attention(l), {},
                               l + 1 < blocks.size() ? &blocks[l + 1].input_norm() : end);
  return stream;
}

at::Tensor StageModules::for_output(const at::Tensor& y) const { return output_scale_ == 1 ? y : y.mul(output_scale_); }

void StageModules::check_positions(const at::Tensor& position_ids, std::int64_t count) const {
  if (!rope.cos.defined()) return;  // learned positions are checked where they are looked up
  std::int64_t lowest = 0, highest = count - 1;
  if (position_ids.defined()) {
    lowest = position_ids.min().item<std::int64_t>();
    highest = position_ids.max().item<std::int64_t>();
  }
  if (lowest < 0 || highest >= max_positions_)
    throw ConfigError(rule_got_fix(concat("each position id must be one of 0 … ", max_positions_ - 1),
                                   concat("position id ", lowest < 0 ? lowest : highest)));
}

at::TensorOptions stream_options(const plan::ModelShape& shape, const at::TensorOptions& parameters) {
  const bool widens = shape.wide_stream && parallel::Precision::is_half(parameters.dtype().toScalarType());
  return widens ? parameters.dtype(at::kFloat) : parameters;
}

at::Tensor counted_positions(std::int64_t s, std::int64_t b, at::Device device) {
  return at::arange(s, at::TensorOptions().dtype(at::kLong).device(device)).unsqueeze(1).expand({s, b}).contiguous();
}

}  // namespace megatron::model
