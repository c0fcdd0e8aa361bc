#include <nlohmann/json.hpp>

#include "megatron/base/error.h"
#include "megatron/models/gpt/families/folders.h"
#include "megatron/plan/rule_list.h"
#include "megatron/plan/rules.h"

// GPT-OSS: experts with biases and clamped gates, a sink of each head, windows in every other layer.
namespace megatron::models::gpt {
namespace {

using namespace families;
using config::ModelConfig;
using nlohmann::json;
using plan::ModelShape;

// What config.json of a GPT-OSS leaves out, or may leave out.
constexpr double kLimit = 7, kOffset = 1, kBase = 150000;
constexpr std::int64_t kWindow = 128, kSkip = 2, kOriginalPositions = 4096;
constexpr double kFactor = 32;

/// Weights of experts in four bits are read (fused_experts.h); other quantizations are not.
void read_quantization(JsonFields& fields) {
  const json& field = fields.value("quantization_config");
  if (field.is_null()) return;
  if (!field.is_object()) fields.refuse("quantization_config", "an object");
  JsonFields inner(field, fields.file(), "quantization_config.");
  if (inner.text("quant_method", "") != "mxfp4") inner.refuse("quant_method", "mxfp4");
  inner.ignore({"modules_to_not_convert", "dequantize"});
  inner.finish();
}

void read_oss(const json& object, JsonFields& fields, FolderConfig& folder) {
  check_classes(object, fields, "GptOss");
  ModelConfig& model = folder.model;
  read_sizes(fields, model);
  if (model.kv_channels == 0 && !fields.has("head_dim")) model.kv_channels = 64;
  read_gated(fields, model, "hidden_act", 1e-5);
  if (model.activation != "silu") fields.refuse("hidden_act", "silu, as all of these have it");
  model.activation = "quick_gelu";
  fields.must_be("swiglu_limit", kLimit);
  model.activation_func_clamp_value = kLimit;
  model.glu_linear_offset = kOffset;
  set_biases(model, fields.flag("attention_bias", true), /*mlp=*/true);
  model.softmax_type = "learnable";
  model.untie_embeddings_and_output_weights = !fields.flag("tie_word_embeddings", false);
  model.sliding_window = read_window(object, fields, kWindow);
  read_layer_types(fields, model, kSkip);
  model.num_experts = fields.size("num_local_experts", plan::kMaxExperts);
  model.moe_router_topk = fields.size("num_experts_per_tok", model.num_experts);
  model.moe_ffn_hidden_size = model.ffn_hidden_size;
  fields.must_be("experts_per_token", model.moe_router_topk);  // the same in other words
  fields.ignore({"initial_context_length", "router_aux_loss_coef"});
  fields.must_be("output_router_logits", false);
  read_rope(object, fields, model, {.base = kBase});
  const json scaling = object.value("rope_scaling", json());
  if (!fields.has("rope_parameters") && (scaling.is_null() || scaling.empty())) {
    if (object.contains("rope_scaling"))
      fields.refuse("rope_scaling", "left out or say something: null is YaRN in transformers 5, and was not in 4");
    model.rope_scaling_type = "yarn";
    model.rope_scaling_factor = kFactor;
    model.rope_original_positions = kOriginalPositions;
    model.yarn_correction_range_round_to_int = false;
  }
  read_quantization(fields);
  read_head(object, fields, folder);
}

bool holds_oss(const ModelConfig& model, const ModelShape& shape) {
  return shape.rms_norm && shape.gated && rotates_halves(model) && model.activation == "quick_gelu" &&
         mlp_biased(model) &&
         has_layers(model,
                    {.sliding_window = model.sliding_window,
                     .window_attn_skip_freq = model.window_attn_skip_freq,
                     .softmax_type = "learnable"},
                    {.linear_bias_in = model.linear_bias_in,
                     .activation_func_clamp_value = kLimit,
                     .glu_linear_offset = kOffset}) &&
         model.moe_layer_freq == 1 && model.moe_shared_expert_intermediate_size == 0 &&
         model.moe_router_score_function == "softmax" && !model.moe_router_pre_softmax &&
         model.moe_router_num_groups == 0 && model.moe_router_topk_scaling_factor == 1;
}

void write_oss(const FolderConfig& folder, const HasTensor&, json& object) {
  const ModelConfig& model = folder.model;
  // transformers makes a mask of windows even where no layer has one.
  const std::int64_t window = model.sliding_window > 0 ? model.sliding_window : kWindow;
  write_network(folder, object, "gpt_oss", "GptOss");
  object.update({{"hidden_act", "silu"},
                 {"intermediate_size", plan::experts_of(model)->expert.width},
                 {"attention_bias", attention_biased(model)},
                 {"swiglu_limit", kLimit},
                 {"num_local_experts", model.num_experts},
                 {"num_experts_per_tok", model.moe_router_topk},
                 {"sliding_window", window},
                 {"layer_types", layer_types(model)},
                 {"output_router_logits", false}});
  write_head(folder, object);
}

LayerNames oss_layer(const std::string& layer, const plan::LayerSpec& spec) {
  LayerNames names = llama_layer(layer);
  names[plan::SelfAttention::kSinks] = {layer + "self_attn.sinks"};
  names["mlp.router"] = {layer + "mlp.router"};
  name_experts(names, layer + "mlp.", spec.experts()->count, "gate_proj", "up_proj", "down_proj");
  return names;
}

constexpr std::string_view kOssTypes[] = {"gpt_oss"};

}  // namespace

extern const HfFamily kOss;
constinit const HfFamily kOss = decoder_family<oss_layer>(
    {.name = "gpt_oss",
     .form = "a GPT-OSS (RMSNorm, rope of whole heads, softmax_type learnable, num_experts in every layer with biases, "
             "quick_gelu with activation_func_clamp_value 7 and glu_linear_offset 1)",
     .model_types = kOssTypes,
     .read = read_oss,
     .holds = holds_oss,
     .write = write_oss,
     .experts = true,
     .fuses_experts = true});

}  // namespace megatron::models::gpt
