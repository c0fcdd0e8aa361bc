#include <algorithm>
#include <cmath>

#include "megatron/base/error.h"
#include "megatron/plan/model_kind.h"

// T5 (Raffel et al. 2020): an encoder, and a decoder that reads what the encoder made; attention by distance in place
// of positions, scores that are not divided by the root of their width, dropout also inside of MLPs. With learned
// positions it is Megatron-LM's: both stacks add the same table, and the rest is as in a GPT, with a bias of the
// logits.
namespace megatron::models::t5 {
namespace {

void resolve(config::RunConfig& config) {
  if (config.data.decoder_seq_length == 0)
    config.data.decoder_seq_length = std::max<std::int64_t>(config.data.seq_length / 4, 3);
}

void check(const config::ModelConfig& model, plan::Rules& rules) {
  rules.require(model.position_embedding_type == "relative" || model.position_embedding_type == "learned_absolute",
                "model.architecture t5 has model.position_embedding_type relative or, as Megatron-LM's, "
                "learned_absolute.",
                model.position_embedding_type, "--position-embedding-type relative");
  rules.require(model.head == "tokens", "the heads of tasks are for model.architecture gpt and bert.",
                concat("t5, model.head ", model.head), "--model.head tokens (the default)");
  rules.require(model.num_query_groups == 0 || model.num_query_groups == model.num_attention_heads,
                "model.architecture t5 has a key and a value for each head.",
                concat("model.num_query_groups ", model.num_query_groups), "--model.num_query_groups 0 (the default)");
  rules.require(!model.apply_residual_connection_post_layernorm && !(model.add_qkv_bias && !model.add_bias_linear),
                "model.architecture t5 has its norms before each branch, and biases of all linear layers or of none.",
                "model.apply_residual_connection_post_layernorm or model.add_qkv_bias",
                "--model.apply_residual_connection_post_layernorm false --model.add_qkv_bias false");
}

void describe(const config::ModelConfig& model, plan::ModelShape& shape) {
  shape.encoder_layers = model.num_layers;
  shape.num_layers += model.decoder_num_layers > 0 ? model.decoder_num_layers : model.num_layers;
  if (shape.learned_positions) return;  // Megatron-LM's: GPT's blocks with cross attention between them
  shape.position_buckets = model.relative_attention_num_buckets;
  shape.position_max_distance = model.relative_attention_max_distance;
  shape.attention_scale = 1;
  // Of the tied output layer alone.
  if (shape.tied_output)
    shape.output_scale = 1 / std::sqrt(static_cast<double>(std::max<std::int64_t>(1, model.hidden_size)));
  shape.inner_dropout = true;
}

}  // namespace

extern const plan::ModelKind kPlan;
constinit const plan::ModelKind kPlan{.resolve = resolve, .check = check, .describe = describe};

}  // namespace megatron::models::t5
