#include <nlohmann/json.hpp>

#include "megatron/models/gpt/families/folders.h"

// Phi-3 and Phi-4: a Llama with fused matrices, which may rotate a part of a head, with longrope or not.
namespace megatron::models::gpt {
namespace {

using namespace families;
using config::ModelConfig;
using nlohmann::json;
using plan::ModelShape;

constexpr std::int64_t kPhiPositions = 4096;  // before longrope, where config.json names none

bool is_longrope(const ModelConfig& model) {
  return model.rope_scaling_factor != 1 && model.rope_scaling_type == "longrope";
}

void read_phi(const json& object, JsonFields& fields, FolderConfig& folder) {
  check_classes(object, fields, "Phi3");
  ModelConfig& model = folder.model;
  read_sizes(fields, model);
  read_gated(fields, model, "hidden_act", 1e-5);
  model.add_bias_linear = false;
  fields.must_be("attention_bias", false);
  model.hidden_dropout = fields.number("resid_pdrop", 0);
  fields.ignore({"embd_pdrop"});
  model.untie_embeddings_and_output_weights = !fields.flag("tie_word_embeddings", false);
  model.sliding_window = fields.size("sliding_window", kMaxPositions, 0);
  const std::int64_t before = fields.size("original_max_position_embeddings", kMaxPositions, kPhiPositions);
  read_rope(object, fields, model, {.partial = true, .longrope_positions = before});
  read_head(object, fields, folder);
}

void write_phi(const FolderConfig& folder, const HasTensor&, json& object) {
  const ModelConfig& model = folder.model;
  write_network(folder, object, "phi3", "Phi3");
  object.update({{"resid_pdrop", model.hidden_dropout},
                 {"embd_pdrop", model.hidden_dropout},
                 {"attention_bias", false},
                 {"partial_rotary_factor", model.rotary_percent},
                 {"sliding_window", window_or_null(model)},
                 {"original_max_position_embeddings",
                  is_longrope(model) ? model.rope_original_positions : model.max_position_embeddings}});
  write_head(folder, object);
}

LayerNames phi_layer(const std::string& layer, const plan::LayerSpec&) {
  LayerNames names = llama_layer(layer);
  names["self_attention.linear_qkv"] = {layer + "self_attn.qkv_proj"};
  names["mlp.linear_fc1"] = {layer + "mlp.gate_up_proj"};
  return names;
}

constexpr std::string_view kPhiTypes[] = {"phi3"};

}  // namespace

extern const HfFamily kPhi;
constinit const HfFamily kPhi = decoder_family<phi_layer>(
    {.name = "phi3",
     .form = "a Phi-3 (RMSNorm, rope of a part of a head, unstretched or by longrope, gated_linear_unit, no biases)",
     .model_types = kPhiTypes,
     .read = read_phi,
     .holds =
         [](const ModelConfig& model, const ModelShape& shape) {
           ModelConfig plain = model;
           if (is_longrope(model)) plain.rope_scaling_factor = 1;
           return shape.rms_norm && shape.gated && rotates_halves(plain, /*whole=*/false) &&
                  has_layers(model, {.sliding_window = model.sliding_window}) && !shape.linear_bias &&
                  plain.rope_scaling_factor == 1;
         },
     .write = write_phi});

}  // namespace megatron::models::gpt
