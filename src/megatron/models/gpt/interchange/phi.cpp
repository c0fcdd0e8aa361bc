#include <nlohmann/json.hpp>

#include "megatron/models/gpt/interchange/folders.h"

// Phi-3 and Phi-4: a Llama with fused matrices, which may rotate a part of a head.
namespace megatron::models::gpt {
namespace {

using namespace interchange;
using config::ModelConfig;
using nlohmann::json;
using plan::ModelShape;

config::AttentionVariant phi_attention(const ModelConfig& model) { return {.sliding_window = model.sliding_window}; }

void read_phi(const json& object, JsonFields& fields, FolderConfig& folder) {
  check_classes(object, fields, "Phi3");
  ModelConfig& model = folder.model;
  read_sizes(fields, model);
  read_gated(fields, model, "hidden_act", 1e-5);
  model.add_bias_linear = false;
  fields.must_be("attention_bias", false);
  model.hidden_dropout = fields.number("resid_pdrop", 0);
  fields.ignore({"embd_pdrop", "original_max_position_embeddings"});  // the last without longrope
  model.untie_embeddings_and_output_weights = !fields.flag("tie_word_embeddings", false);
  model.sliding_window = fields.size("sliding_window", kMaxPositions, 0);
  read_rope(object, fields, model, {.partial = true});
  read_head(object, fields, folder);
}

void write_phi(const FolderConfig& folder, const HasTensor&, json& object) {
  const ModelConfig& model = folder.model;
  object.update(sizes_json(model));
  object.update({{"model_type", "phi3"},
                 {"architectures", class_of(folder, "Phi3")},
                 {"hidden_act", their_activation(model.activation)},
                 {"rms_norm_eps", model.layernorm_epsilon},
                 {"resid_pdrop", model.hidden_dropout},
                 {"embd_pdrop", model.hidden_dropout},
                 {"attention_bias", false},
                 {"partial_rotary_factor", model.rotary_percent},
                 {"sliding_window", model.sliding_window > 0 ? json(model.sliding_window) : json()},
                 {"original_max_position_embeddings", model.max_position_embeddings}});
  write_rope(model, object);
  write_head(folder, object);
}

LayerNames phi_layer(const std::string& layer) {
  LayerNames names = llama_layer(layer);
  names["self_attention.linear_qkv"] = {layer + "self_attn.qkv_proj"};
  names["mlp.linear_fc1"] = {layer + "mlp.gate_up_proj"};
  return names;
}

constexpr std::string_view kPhiTypes[] = {"phi3"};

}  // namespace

extern const HfFamily kPhi;
constinit const HfFamily kPhi{
    .name = "phi3",
    .architecture = "gpt",
    .models = "Phi-3 and Phi-4 without longrope",
    .form = "a Phi-3 (RMSNorm, rope of a part of a head, unstretched, gated_linear_unit, no biases)",
    .model_types = kPhiTypes,
    .read = read_phi,
    .holds =
        [](const ModelConfig& model, const ModelShape& shape) {
          return shape.rms_norm && shape.gated && rotates_halves(model, /*whole=*/false) &&
                 model == phi_attention(model) && model == config::LayerVariant{} && !shape.linear_bias &&
                 model.rope_scaling_factor == 1 && !model.apply_residual_connection_post_layernorm;
        },
    .write = write_phi,
    .table = [](const ModelShape& shape,
                const HasTensor& theirs) { return decoder_table(shape, decoder_prefix(theirs), phi_layer); },
    .written_table = [](const ModelShape& shape,
                        const HasTensor&) { return decoder_table(shape, "model.", phi_layer); },
    .needs_no_reading = needs_no_reading};

}  // namespace megatron::models::gpt
