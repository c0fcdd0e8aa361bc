#pragma once
#include <cstdint>
#include <map>

#include "megatron/plan/parameters/parameters.h"

namespace megatron::plan {

/// Layers of a model by what they cost: of two with the same number one does for both. Told without making them, so
/// some that are alike have numbers of their own.
inline std::int64_t layer_kind(const ModelShape& shape, std::int64_t layer) {
  constexpr std::int64_t kDense = -1, kExperts = -2, kWide = -3;  // fp8.format excludes experts
  const bool windows_differ = shape.attention.sliding_window > 0 && shape.attention.window_attn_skip_freq > 0;
  if (!shape.layers.empty() || shape.encoder_decoder() || windows_differ) return layer;
  return shape.has_experts(layer) ? kExperts : shape.wide(layer) ? kWide : kDense;
}

/// Whether all layers are of one kind.
inline bool one_layer_kind(const ModelShape& shape) {
  for (std::int64_t layer = 1; layer < shape.num_layers; ++layer)
    if (layer_kind(shape, layer) != layer_kind(shape, 0)) return false;
  return true;
}

/// What was found for layers, found once for each kind.
template <class Value>
class ByLayerKind {
 public:
  explicit ByLayerKind(const ModelShape& shape) : shape_(shape) {}

  /// make(the layer) where there is none of its kind yet.
  template <class Make>
  const Value& of(std::int64_t layer, const Make& make) {
    const std::int64_t kind = layer_kind(shape_, layer);
    const auto at = known_.find(kind);
    return at != known_.end() ? at->second : known_.emplace(kind, make(shape_.layer(layer))).first->second;
  }

 private:
  const ModelShape& shape_;
  std::map<std::int64_t, Value> known_;
};

}  // namespace megatron::plan
