#include "megatron/interchange/megatron_lm/dist/dist_names.h"

#include <string_view>
#include <utility>

#include "megatron/base/error.h"

namespace megatron::interchange {
namespace {

/// A name of ours within a layer, taken apart.
struct InLayer {
  std::string stack;   ///< "decoder.layers."
  std::string before;  ///< the same with the layer's number: "decoder.layers.3."
  std::string rest;    ///< within the layer, as they call it
  std::int64_t layer = 0, layers = 0;
  std::int64_t expert = -1, experts = 0;  ///< -1: of none
  bool alone = false;                     ///< each layer of the stack has tensors of its own
  plan::LayerSpec spec;
};

/// Layers of a stack that differ are kept apart.
bool are_mixed(const plan::ModelShape& shape) {
  return shape.experts && (shape.moe_layer_freq > 1 || shape.dense_layers > 0);
}

void take_expert(InLayer& in) {
  constexpr std::string_view kEach = "mlp.experts.local_experts.", kTheirs = "mlp.experts.experts.";
  if (in.rest == "mlp.shared_experts.gate.weight") in.rest = "mlp.shared_experts.gate_weight";
  if (!in.rest.starts_with(kEach)) return;
  const std::size_t dot = in.rest.find('.', kEach.size());
  in.expert = std::stoll(in.rest.substr(kEach.size(), dot - kEach.size()));
  in.experts = in.spec.experts()->count;
  in.rest = std::string(kTheirs) + in.rest.substr(dot + 1);
}

/// False, and nothing in `in`, for what is in no layer.
bool take_apart(const plan::ModelShape& shape, const std::string& ours, InLayer& in) {
  constexpr std::string_view kLayers = ".layers.";
  const std::size_t layers = ours.find(kLayers);
  if (layers == std::string::npos) return false;
  const std::size_t number = layers + kLayers.size(), dot = ours.find('.', number);
  // Depths of multi-token prediction have tensors of their own, one for each.
  const bool ahead = ours.starts_with("mtp.");
  const std::string inner =
      ahead && ours.substr(dot + 1).starts_with(plan::PredictionDepth::kLayer) ? plan::PredictionDepth::kLayer : "";
  in.stack = ours.substr(0, number);
  in.before = ours.substr(0, dot + 1) + inner;
  in.rest = ours.substr(in.before.size());
  in.layer = std::stoll(ours.substr(number, dot - number));
  in.alone = ahead || are_mixed(shape);
  const bool second = shape.encoder_decoder() && !ours.starts_with("encoder.");
  in.layers = !shape.encoder_decoder() ? shape.num_layers
              : second                 ? shape.num_layers - shape.encoder_layers
                                       : shape.encoder_layers;
  in.spec = shape.layer(in.layer + (ahead ? shape.num_layers : second ? shape.encoder_layers : 0));
  take_expert(in);
  return true;
}

DistName dist_name(const InLayer& in, const std::string& rest, bool alone) {
  DistName name{.name = (alone ? in.before : in.stack) + rest};
  const auto add = [&](std::int64_t index, std::int64_t extent) {
    name.index.push_back(index);
    name.extents.push_back(extent);
  };
  if (!alone) add(in.layer, in.layers);
  if (in.expert >= 0) add(in.expert, in.experts);
  return name;
}

/// What a tensor may be called within its layer: norms also as a part of the linear layer that reads them.
std::vector<std::string> names_within(const InLayer& in) {
  struct Fused {
    std::string_view own, fused;
    bool first = false;  ///< the fused name is the likelier one
  };
  const bool latents = in.spec.attention().latents.has_value();
  std::vector<Fused> norms = {{"pre_mlp_layernorm.", "mlp.linear_fc1.layer_norm_", !latents}};
  if (latents) {
    norms.push_back({"self_attention.q_layernorm.", "self_attention.linear_q_up_proj.layer_norm_"});
    norms.push_back({"self_attention.kv_layernorm.", "self_attention.linear_kv_up_proj.layer_norm_"});
  } else {
    norms.push_back({"input_layernorm.", "self_attention.linear_qkv.layer_norm_", true});
  }
  for (const auto& [own, fused, first] : norms) {
    if (!in.rest.starts_with(own)) continue;
    const std::string other = std::string(fused) + in.rest.substr(own.size());
    return first ? std::vector{other, in.rest} : std::vector{in.rest, other};
  }
  return {in.rest};
}

std::string joined(const std::vector<std::int64_t>& numbers) {
  std::string text;
  for (const std::int64_t number : numbers) text += concat(text.empty() ? "" : ".", number);
  return text;
}

}  // namespace

std::vector<DistName> dist_names(const plan::ModelShape& shape, const std::string& ours) {
  InLayer in;
  if (!take_apart(shape, ours, in)) return {{ours}};
  std::vector<DistName> names;
  for (const std::string& rest : names_within(in)) {
    if (!ours.starts_with("mtp.")) names.push_back(dist_name(in, rest, /*alone=*/false));
    names.push_back(dist_name(in, rest, /*alone=*/true));
  }
  return names;
}

std::vector<DistName> written_names(const plan::ModelShape& shape, const std::string& ours) {
  InLayer in;
  if (!take_apart(shape, ours, in)) return {{ours}};
  const bool both = in.spec.experts() != nullptr || in.spec.attention().latents;
  std::vector<DistName> names;
  for (const std::string& rest : names_within(in))
    if (both || names.empty()) names.push_back(dist_name(in, rest, in.alone));
  return names;
}

std::string state_entry(const plan::ModelShape& shape, const std::string& part) {
  InLayer in;
  DistName name{.name = part + "._extra_state"};
  if (take_apart(shape, name.name, in)) name = dist_name(in, in.rest, in.alone);
  if (name.index.empty()) return name.name + "/shard_0_1";
  return concat(name.name, "/shard_", joined(name.index), "_", joined(name.extents));
}

std::string second_dist_name(const std::string& ours) {
  constexpr std::string_view kEmbedding = "embedding.", kPositions = "embedding.position_embeddings.";
  if (ours.starts_with(kPositions)) return ours.substr(kEmbedding.size());
  return ours.starts_with("output_layer.") ? "lm_head." + ours : "";
}

}  // namespace megatron::interchange
