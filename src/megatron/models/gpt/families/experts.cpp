#include <algorithm>
#include <nlohmann/json.hpp>

#include "megatron/base/error.h"
#include "megatron/models/gpt/families/folders.h"
#include "megatron/plan/rule_list.h"
#include "megatron/plan/rules.h"

// Mixtures of experts in every layer: Mixtral, and Qwen3-MoE, which has norms of queries and keys.
namespace megatron::models::gpt {
namespace {

using namespace families;
using config::ModelConfig;
using nlohmann::json;
using plan::ModelShape;

std::string experts_class(bool mixtral) { return mixtral ? "Mixtral" : "Qwen3Moe"; }

/// How many times as much the auxiliary loss of one sequence is in transformers, which has a mean over layers in which
/// a token counts for each of its experts, as it is here, where layers add up.
double balance_of_one(const ModelConfig& model) {
  return static_cast<double>(model.moe_router_topk) / static_cast<double>(model.num_layers);
}

void read_mixture(const json& object, JsonFields& fields, FolderConfig& folder) {
  const bool mixtral = fields.text("model_type", "") == "mixtral";
  check_classes(object, fields, experts_class(mixtral));
  ModelConfig& model = folder.model;
  if (mixtral)
    model.sliding_window = read_window(object, fields, 0);
  else
    refuse_windows(object, fields);
  read_sizes(fields, model);
  read_gated(fields, model, "hidden_act", mixtral ? 1e-5 : 1e-6);
  model.untie_embeddings_and_output_weights = !fields.flag("tie_word_embeddings", false);
  fields.must_be("attention_bias", false);
  fields.must_be("mlp_bias", false);
  model.add_bias_linear = false;
  model.qk_layernorm = !mixtral;
  const char* const count = mixtral || !fields.has("num_experts") ? "num_local_experts" : "num_experts";
  model.num_experts = fields.size(count, plan::kMaxExperts);
  model.moe_router_topk = fields.size("num_experts_per_tok", model.num_experts);
  model.moe_ffn_hidden_size = mixtral ? model.ffn_hidden_size : fields.size("moe_intermediate_size", kMaxWidth);
  model.moe_router_pre_softmax = !mixtral && !fields.flag("norm_topk_prob", false);
  fields.must_be("router_jitter_noise", 0.0);
  fields.must_be("decoder_sparse_step", 1);
  fields.must_be("mlp_only_layers", json::array());
  // The experts' balance is no part of the weights: read where it is trained with.
  const double coefficient = fields.number("router_aux_loss_coef", 0.001);
  if (!(coefficient >= 0 && coefficient <= 1)) fields.refuse("router_aux_loss_coef", "from 0 to 1");
  if (fields.flag("output_router_logits", false)) model.moe_aux_loss_coeff = coefficient * balance_of_one(model);
  read_rope(object, fields, model, {.base = mixtral ? 1e6 : 1e4});
  read_head(object, fields, folder);
}

/// Whether such a folder can hold these layers.
bool holds_mixture(const ModelConfig& model, const ModelShape& shape) {
  const bool mixtral = !model.qk_layernorm;
  const config::AttentionVariant attention{.qk_layernorm = !mixtral,
                                           .sliding_window = mixtral ? model.sliding_window : 0};
  return shape.rms_norm && shape.gated && rotates_halves(model) && has_layers(model, attention) &&
         model.moe_layer_freq == 1 && model.moe_shared_expert_intermediate_size == 0 &&
         model.moe_router_score_function == "softmax" && model.moe_router_num_groups == 0 &&
         model.moe_router_topk_scaling_factor == 1 && !model.add_bias_linear &&
         !(mixtral && model.moe_router_pre_softmax);
}

void write_mixture(const FolderConfig& folder, const HasTensor&, json& object) {
  const ModelConfig& model = folder.model;
  const bool mixtral = !model.qk_layernorm;
  const std::int64_t width = plan::experts_of(model)->expert.width;
  write_network(folder, object, mixtral ? "mixtral" : "qwen3_moe", experts_class(mixtral));
  object.update({{"num_experts_per_tok", model.moe_router_topk},
                 {"output_router_logits", model.moe_aux_loss_coeff > 0},
                 {"router_aux_loss_coef", model.moe_aux_loss_coeff / balance_of_one(model)}});
  if (mixtral) {
    object.update({{"num_local_experts", model.num_experts},
                   {"intermediate_size", width},
                   {"sliding_window", window_or_null(model)}});
  } else {
    object.update({{"num_experts", model.num_experts},
                   {"moe_intermediate_size", width},
                   {"norm_topk_prob", !model.moe_router_pre_softmax},
                   {"decoder_sparse_step", 1},
                   {"mlp_only_layers", json::array()},
                   {"use_sliding_window", false}});
  }
  write_head(folder, object);
}

/// Llama's names with those of the experts: Mixtral's, or with norms of queries and keys Qwen3-MoE's.
LayerNames expert_layer(const std::string& layer, const plan::LayerSpec& spec) {
  LayerNames names = llama_layer(layer);
  if (spec.experts() == nullptr) return names;
  const bool qwen = spec.attention().variant.qk_layernorm;
  const std::string mlp = layer + (qwen ? "mlp." : "block_sparse_moe.");
  names["mlp.router"] = {mlp + "gate"};
  if (qwen)
    name_experts(names, mlp, spec.experts()->count, "gate_proj", "up_proj", "down_proj");
  else
    name_experts(names, mlp, spec.experts()->count, "w1", "w3", "w2");
  return names;
}

constexpr std::string_view kTypes[] = {"mixtral", "qwen3_moe"};

}  // namespace

extern const HfFamily kExperts;
constinit const HfFamily kExperts = decoder_family<expert_layer>(
    {.name = "experts",
     .form = "a Mixtral or Qwen3-MoE (a Llama without biases, with num_experts in every layer, a router of softmax, no "
             "shared expert)",
     .model_types = kTypes,
     .read = read_mixture,
     .holds = holds_mixture,
     .write = write_mixture,
     .experts = true});

}  // namespace megatron::models::gpt
