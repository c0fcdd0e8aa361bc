#include "megatron/model/stage_modules.h"

#include <ATen/ops/arange.h>

#include "megatron/base/error.h"

namespace megatron::model {
namespace {

constexpr const char* kWordEmbedding = "embedding.word_embeddings.weight";
constexpr const char* kPositionEmbedding = "embedding.position_embeddings.weight";

}  // namespace

StageModules::StageModules(const GptOptions& options, const plan::StagePart& part,
                           const parallel::ParameterStore& parameters, const comm::Group& tp) {
  const bool split = options.sequence_parallel;
  const auto& shape = options.shape;
  if (part.embedding) {
    using parallel::VocabParallelEmbedding;
    words.emplace(parameters.get(kWordEmbedding), shape.vocab, "token id", tp, VocabParallelEmbedding::Options{split});
    positions.emplace(parameters.get(kPositionEmbedding), shape.max_positions, "position id", tp,
                      VocabParallelEmbedding::Options{split});
  }
  const Block::Options block{.epsilon = options.layernorm_epsilon,
                             .gelu = options.gelu,
                             .sequence_parallel = split,
                             .keep_gelu = !options.recompute.gelu && !options.recompute.mlp,
                             .recompute_mlp = options.recompute.mlp};
  for (std::int64_t l = part.first_layer; l < part.first_layer + part.num_layers; ++l)
    blocks.emplace_back(parameters, concat("decoder.layers.", l, "."), block, tp);
  if (!part.output) return;
  final_norm = norm_of(parameters, "decoder.final_layernorm.", options.layernorm_epsilon);
  output.emplace(parameters.get(shape.tied_output ? kWordEmbedding : "output_layer.weight"), tp,
                 parallel::VocabParallelOutput::Options{.vocab = shape.vocab,
                                                        .label_smoothing = options.label_smoothing,
                                                        .chunk_tokens = options.loss_chunk_tokens,
                                                        .sequence_parallel = split});
}

at::Tensor StageModules::embed(const at::Tensor& tokens_sb, const at::Tensor& positions_sb) const {
  return words->forward(tokens_sb).add(positions->forward(positions_sb));
}

at::Tensor counted_positions(std::int64_t s, std::int64_t b, at::Device device) {
  return at::arange(s, at::TensorOptions().dtype(at::kLong).device(device)).unsqueeze(1).expand({s, b}).contiguous();
}

}  // namespace megatron::model
