#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "megatron/base/error.h"
#include "megatron/models/gpt/families/folders.h"
#include "megatron/plan/rule_list.h"
#include "megatron/plan/rules.h"

// DeepSeek-V2 and V3: latent attention, and behind some dense layers experts with shared ones; routers of softmax (V2),
// or of sigmoids with biases (V3).
namespace megatron::models::gpt {
namespace {

using namespace families;
using config::ModelConfig;
using nlohmann::json;
using plan::ModelShape;

constexpr double kEpsilon = 1e-6;  // of the norms of latents, whatever config.json says of the others
constexpr std::int64_t kMaxDepths = 64;
constexpr const char *kLayers = "model.layers.", *kGreedy = "greedy", *kGroupLimited = "group_limited_greedy";

bool is_third(const ModelConfig& model) { return model.moe_router_enable_expert_bias; }

/// A whole number from 0 on; absent or null: `otherwise`.
std::int64_t from_zero(JsonFields& fields, const char* key, std::int64_t most, std::int64_t otherwise) {
  return fields.value(key) == 0 ? 0 : fields.size(key, most, otherwise);
}

void read_latents(const json& object, JsonFields& fields, ModelConfig& model) {
  model.multi_latent_attention = model.qk_layernorm = true;
  model.q_lora_rank = fields.size("q_lora_rank", kMaxWidth, object.contains("q_lora_rank") ? 0 : 1536);
  model.kv_lora_rank = fields.size("kv_lora_rank", kMaxWidth, 512);
  model.qk_head_dim = fields.size("qk_nope_head_dim", kMaxWidth, 128);
  model.qk_pos_emb_head_dim = fields.size("qk_rope_head_dim", kMaxWidth, 64);
  model.v_head_dim = fields.size("v_head_dim", kMaxWidth, 128);
  fields.must_be("num_key_value_heads", model.num_attention_heads);
  fields.must_be("head_dim", model.qk_pos_emb_head_dim);  // the same in other words
  fields.must_be("qk_head_dim", model.qk_head_dim + model.qk_pos_emb_head_dim);
  fields.must_be("attention_bias", false);
}

/// How many of a group's experts count where groups are chosen: the best one of a V2, the best two of a V3.
std::int64_t best_of_group(bool third) { return third ? 2 : 1; }

void read_groups(JsonFields& fields, bool third, ModelConfig& model) {
  const std::int64_t groups = fields.size("n_group", plan::kMaxExperts, third ? 8 : 1),
                     taken = fields.size("topk_group", plan::kMaxExperts, third ? 4 : 1);
  const std::string method = fields.text("topk_method", third ? "noaux_tc" : kGreedy);
  if (third ? method != "noaux_tc" : method != kGreedy && method != kGroupLimited)
    fields.refuse("topk_method", third ? "noaux_tc" : "greedy or group_limited_greedy");
  if (groups == 1 || method == kGreedy) return;
  if (model.num_experts % groups != 0 || model.num_experts / groups < best_of_group(third))
    fields.refuse("n_group", "a number of groups that share the experts");
  if (taken > groups || taken > model.moe_router_topk || taken * (model.num_experts / groups) < model.moe_router_topk)
    fields.refuse("topk_group", "at most n_group and num_experts_per_tok, and enough for so many experts");
  model.moe_router_num_groups = groups;
  model.moe_router_group_topk = taken;
  model.moe_router_group_best = best_of_group(third);
}

void read_experts(JsonFields& fields, bool third, ModelConfig& model) {
  model.num_experts = fields.size("n_routed_experts", plan::kMaxExperts, third ? 256 : 64);
  fields.must_be("num_local_experts", model.num_experts);  // the same in other words
  model.moe_router_topk =
      third ? fields.size("num_experts_per_tok", model.num_experts, std::min<std::int64_t>(8, model.num_experts))
            : fields.size("num_experts_per_tok", model.num_experts);
  model.moe_ffn_hidden_size = fields.size("moe_intermediate_size", kMaxWidth, third ? 2048 : 1407);
  const std::int64_t shared = fields.size("n_shared_experts", plan::kMaxExperts, third ? 1 : 2);
  model.moe_shared_expert_intermediate_size = shared * model.moe_ffn_hidden_size;
  model.first_k_dense_replace = from_zero(fields, "first_k_dense_replace", kMaxLayers, third ? 3 : 0);
  if (model.first_k_dense_replace >= model.num_layers)
    fields.refuse("first_k_dense_replace", "below num_hidden_layers: some layers have experts");
  fields.must_be("moe_layer_freq", 1);
  model.moe_router_topk_scaling_factor = fields.number("routed_scaling_factor", third ? 2.5 : 1);
  if (!(model.moe_router_topk_scaling_factor > 0)) fields.refuse("routed_scaling_factor", "above 0");
  fields.must_be("scoring_func", third ? "sigmoid" : "softmax");
  fields.must_be("norm_topk_prob", third);
  model.moe_router_score_function = third ? "sigmoid" : "softmax";
  model.moe_router_enable_expert_bias = third;
  model.moe_router_pre_softmax = !third;
  if (third && model.moe_router_topk == 1) fields.refuse("num_experts_per_tok", "at least 2, whose scores are divided");
  read_groups(fields, third, model);
  fields.ignore({"aux_loss_alpha", "seq_aux", "ep_size"});  // of training, and of ranks
}

void read_deepseek(const json& object, JsonFields& fields, FolderConfig& folder) {
  const bool third = fields.text("model_type", "") == "deepseek_v3";
  check_classes(object, fields, third ? "DeepseekV3" : "DeepseekV2");
  ModelConfig& model = folder.model;
  read_sizes(fields, model, /*grouped=*/false);
  read_gated(fields, model);
  if (model.layernorm_epsilon != kEpsilon) fields.refuse("rms_norm_eps", "1e-6, which the norms of latents have");
  model.untie_embeddings_and_output_weights = !fields.flag("tie_word_embeddings", false);
  if (!third) fields.must_be("mlp_bias", false);
  model.add_bias_linear = false;
  read_latents(object, fields, model);
  read_experts(fields, third, model);
  // Layers that predict further tokens follow the others, where they were not left out: transformers reads none.
  const std::int64_t depths = from_zero(fields, "num_nextn_predict_layers", kMaxDepths, 0);
  if (third) model.mtp_num_layers = depths;
  fields.ignore({"auto_map"});
  read_rope(object, fields, model, {.mscales = true});
  model.rotary_interleaved = !third || fields.flag("rope_interleave", true);
  read_head(object, fields, folder);
}

bool holds_deepseek(const ModelConfig& model, const ModelShape& shape) {
  const bool third = is_third(model), groups = model.moe_router_num_groups > 1;
  const std::int64_t best = model.moe_router_group_best > 0 || !groups
                                ? model.moe_router_group_best
                                : model.moe_router_topk / model.moe_router_group_topk;
  const bool router = third ? model.moe_router_topk > 1 : model.moe_router_pre_softmax && model.rotary_interleaved;
  const std::int64_t width = model.moe_ffn_hidden_size > 0 ? model.moe_ffn_hidden_size : model.ffn_hidden_size;
  return model.multi_latent_attention && router && shape.rms_norm && shape.gated && !model.add_bias_linear &&
         model.layernorm_epsilon == kEpsilon && model == config::AttentionVariant{.qk_layernorm = true} &&
         model == config::LayerVariant{} && !model.apply_residual_connection_post_layernorm &&
         model.moe_layer_freq == 1 && model.first_k_dense_replace < model.num_layers &&
         model.moe_shared_expert_intermediate_size > 0 && model.moe_shared_expert_intermediate_size % width == 0 &&
         !model.moe_shared_expert_gate && (!groups || best == best_of_group(third)) &&
         model.rope_scaling_type != "longrope" && (model.mscale_all_dim > 0 ? model.mscale > 0 : model.mscale == 1);
}

void write_deepseek(const FolderConfig& folder, const HasTensor&, json& object) {
  const ModelConfig& model = folder.model;
  const bool third = is_third(model), groups = model.moe_router_num_groups > 1;
  const std::int64_t width = plan::experts_of(model)->expert.width;
  write_network(folder, object, third ? "deepseek_v3" : "deepseek_v2", third ? "DeepseekV3" : "DeepseekV2",
                "rms_norm_eps", /*grouped=*/false);
  object.update({{"num_key_value_heads", model.num_attention_heads},
                 {"q_lora_rank", model.q_lora_rank > 0 ? json(model.q_lora_rank) : json()},
                 {"kv_lora_rank", model.kv_lora_rank},
                 {"qk_nope_head_dim", model.qk_head_dim},
                 {"qk_rope_head_dim", model.qk_pos_emb_head_dim},
                 {"v_head_dim", model.v_head_dim},
                 {"attention_bias", false},
                 {"n_routed_experts", model.num_experts},
                 {"n_shared_experts", model.moe_shared_expert_intermediate_size / width},
                 {"num_experts_per_tok", model.moe_router_topk},
                 {"moe_intermediate_size", width},
                 {"moe_layer_freq", 1},
                 {"first_k_dense_replace", model.first_k_dense_replace},
                 {"routed_scaling_factor", model.moe_router_topk_scaling_factor},
                 {"scoring_func", model.moe_router_score_function},
                 {"norm_topk_prob", third},
                 {"topk_method", third    ? "noaux_tc"
                                 : groups ? kGroupLimited
                                          : kGreedy},
                 {"n_group", groups ? model.moe_router_num_groups : 1},
                 {"topk_group", groups ? model.moe_router_group_topk : 1}});
  if (third) object["rope_interleave"] = model.rotary_interleaved;
  if (model.mtp_num_layers > 0) object["num_nextn_predict_layers"] = model.mtp_num_layers;
  write_head(folder, object);
}

LayerNames deepseek_layer(const std::string& layer, const plan::LayerSpec& spec) {
  LayerNames names = llama_layer(layer);
  const std::string attention = layer + "self_attn.", mlp = layer + "mlp.", shared = mlp + "shared_experts.";
  names["self_attention.linear_q_proj"] = {attention + "q_proj"};
  names["self_attention.linear_q_down_proj"] = {attention + "q_a_proj"};
  names["self_attention.q_layernorm"] = {attention + "q_a_layernorm"};
  names["self_attention.linear_q_up_proj"] = {attention + "q_b_proj"};
  names["self_attention.linear_kv_down_proj"] = {attention + "kv_a_proj_with_mqa"};
  names["self_attention.kv_layernorm"] = {attention + "kv_a_layernorm"};
  names["self_attention.linear_kv_up_proj"] = {attention + "kv_b_proj"};
  if (spec.experts() == nullptr) return names;
  names["mlp.router"] = {mlp + "gate"};
  names[plan::Experts::kBias] = {mlp + "gate.e_score_correction_bias"};
  names["mlp.shared_experts.linear_fc1"] = {shared + "gate_proj", shared + "up_proj"};
  names["mlp.shared_experts.linear_fc2"] = {shared + "down_proj"};
  name_experts(names, mlp, spec.experts()->count, "gate_proj", "up_proj", "down_proj");
  return names;
}

/// With the depths of multi-token prediction of a V3, as layers behind the last.
Mapping table_of(const ModelShape& shape, const std::string& prefix) {
  Mapping table = decoder_table(shape, prefix, deepseek_layer);
  if (!shape.experts || !shape.experts->router.bias) return table;
  MappingBuilder build;
  for (std::int64_t k = 0; k < shape.mtp_depths; ++k) {
    using Depth = plan::PredictionDepth;
    const Depth depth = shape.prediction_depth(k);
    const plan::Linear projection = depth.projection();
    const std::string layer = concat(prefix, "layers.", shape.num_layers + k, ".");
    build.norm(depth.prefix + Depth::kTokenNorm, layer + "enorm", shape);
    build.norm(depth.prefix + Depth::kStateNorm, layer + "hnorm", shape);
    build.whole(depth.prefix + projection.name + ".weight", layer + "eh_proj.weight",
                {projection.outputs, projection.inputs});
    build.layer(depth.layer, deepseek_layer(layer, depth.layer));
    build.norm(depth.prefix + Depth::kFinalNorm, layer + "shared_head.norm", shape);
  }
  table.merge(build.take());
  return table;
}

/// Depths of prediction have the matrices that they share with the model under names of their own besides.
Mapping shared_matrices(const ModelShape& shape) {
  Mapping theirs;
  const std::vector<std::int64_t> begin = {0, 0}, size = {shape.vocab, shape.hidden};
  const auto copy = [&](const std::string& name, const char* ours) {
    theirs[name] = {.shape = size, .pieces = {{ours, begin, begin, size}}};
  };
  for (std::int64_t k = 0; k < shape.mtp_depths; ++k) {
    const std::string layer = concat(kLayers, shape.num_layers + k, ".");
    copy(layer + "embed_tokens.weight", plan::kWordEmbedding);
    copy(layer + "shared_head.head.weight", shape.tied_output ? plan::kWordEmbedding : plan::kOutputMatrix);
  }
  return theirs;
}

/// Whether a tensor is of a layer behind the last, which predicts further tokens.
bool predicts_further(const FolderConfig& folder, const std::string& name) {
  if (!name.starts_with(kLayers)) return false;
  const char* const digits = name.data() + std::char_traits<char>::length(kLayers);
  std::int64_t layer = 0;
  return std::from_chars(digits, name.data() + name.size(), layer).ec == std::errc() &&
         layer >= folder.model.num_layers;
}

constexpr std::string_view kDeepseekTypes[] = {"deepseek_v2", "deepseek_v3"};

}  // namespace

extern const HfFamily kDeepseek;
constinit const HfFamily kDeepseek = [] {
  HfFamily family = decoder_family<deepseek_layer>(
      {.name = "deepseek",
       .form = "a DeepSeek-V2 or V3 (RMSNorm with epsilon 1e-6, multi_latent_attention, no biases, experts with shared "
               "ones behind first_k_dense_replace layers; a router of softmax with moe_router_pre_softmax, or of "
               "sigmoid with moe_router_enable_expert_bias)",
       .model_types = kDeepseekTypes,
       .read = read_deepseek,
       .holds = holds_deepseek,
       .write = write_deepseek,
       .experts = true});
  family.table = [](const ModelShape& shape, const HasTensor& theirs) {
    return table_of(shape, theirs("model.embed_tokens.weight") ? "model." : "");
  };
  family.written_table = [](const ModelShape& shape, const HasTensor&) { return table_of(shape, "model."); };
  family.copies = shared_matrices;
  family.needs_no_reading = [](const FolderConfig& folder, const std::string& name) {
    return needs_no_reading(folder, name) || predicts_further(folder, name);
  };
  return family;
}();

}  // namespace megatron::models::gpt
