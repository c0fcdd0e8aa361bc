#include "megatron/plan/layer.h"

#include <algorithm>

namespace megatron::plan {
namespace {

using Split = Linear::Split;

std::vector<Linear> linears_of(const SelfAttention& attention, std::int64_t hidden) {
  return {{.name = "self_attention.linear_qkv",
           .outputs = attention.qkv_rows(),
           .inputs = hidden,
           .bias = attention.qkv_bias(),
           .split = Split::Groups,
           .head_size = attention.head_size,
           .head_norms = attention.variant.qk_layernorm
                             ? std::vector<std::string>{"self_attention.q_layernorm", "self_attention.k_layernorm"}
                             : std::vector<std::string>{},
           .full_norms = attention.variant.qk_layernorm_full},
          {.name = "self_attention.linear_proj",
           .outputs = hidden,
           .inputs = attention.query_rows(),
           .bias = attention.bias,
           .split = Split::Inputs}};
}

std::vector<Linear> linears_of(const CrossAttention& attention, std::int64_t hidden) {
  const std::int64_t rows = attention.query_rows();
  return {{.name = "cross_attention.linear_q", .outputs = rows, .inputs = hidden, .bias = attention.bias},
          {.name = "cross_attention.linear_kv",
           .outputs = 2 * rows,
           .inputs = hidden,
           .bias = attention.bias,
           .split = Split::Pairs,
           .reads_encoder = true,
           .head_size = attention.head_size},
          {.name = "cross_attention.linear_proj",
           .outputs = hidden,
           .inputs = rows,
           .bias = attention.bias,
           .split = Split::Inputs}};
}

std::vector<Linear> linears_of(const Mlp& mlp, std::int64_t hidden) {
  return {{.name = "mlp.linear_fc1",
           .outputs = mlp.first_rows(),
           .inputs = hidden,
           .bias = mlp.bias,
           .split = mlp.gated ? Split::Halves : Split::Outputs},
          {.name = "mlp.linear_fc2", .outputs = hidden, .inputs = mlp.width, .bias = mlp.bias, .split = Split::Inputs}};
}

/// A number per head that backward reads, and the output, where attention is not computed again.
Kept kept_core(std::int64_t heads, std::int64_t queries, int tp, const Recomputed& again) {
  if (again.core_attention) return {};
  return {.per_token = queries, .wide_per_token = heads / tp};
}

struct QkvWidths {
  std::int64_t queries, keys;  ///< keys: also of the values
};
QkvWidths widths_of(const SelfAttention& attention, int tp) {
  return {.queries = attention.query_rows() / tp,
          .keys = std::max<std::int64_t>(attention.groups / tp, 1) * attention.head_size};
}

Kept kept_by(const SelfAttention& attention, int tp, bool rms_norm, const Recomputed& again) {
  const auto [queries, keys] = widths_of(attention, tp);
  Kept kept = kept_core(attention.heads, queries, tp, again);
  kept.per_token += queries + 2 * keys;
  if (attention.variant.qk_layernorm) {  // queries and keys as they were, with each head's statistics
    kept.per_token += queries + keys;
    kept.wide_per_token +=
        attention.variant.qk_layernorm_full ? 2 : (rms_norm ? 1 : 2) * (queries + keys) / attention.head_size;
  }
  return kept;
}

Kept kept_by(const CrossAttention& attention, int tp, bool /*rms_norm*/, const Recomputed& again) {
  const std::int64_t queries = attention.query_rows() / tp;
  Kept kept = kept_core(attention.heads, queries, tp, again);
  kept.per_token += queries;
  kept.per_encoder_token = 2 * queries;
  return kept;
}

Kept kept_by(const Mlp& mlp, int tp, bool /*rms_norm*/, const Recomputed& again) {
  if (again.mlp) return {};
  return {.per_token = mlp.first_rows() / tp + (again.gelu ? 0 : mlp.width / tp)};
}

Kept weight_inputs_of(const SelfAttention& attention, int tp, const Recomputed& /*again*/) {
  const auto [queries, keys] = widths_of(attention, tp);
  return {.per_token = 2 * queries + 2 * keys};
}

Kept weight_inputs_of(const CrossAttention& attention, int tp, const Recomputed& /*again*/) {
  const std::int64_t queries = attention.query_rows() / tp;
  return {.per_token = 2 * queries, .per_encoder_token = 2 * queries};
}

Kept weight_inputs_of(const Mlp& mlp, int tp, const Recomputed& again) {
  const std::int64_t fc1 = mlp.first_rows() / tp;
  return {.per_token = fc1 + (again.gelu && !again.mlp ? fc1 : mlp.width / tp)};
}

struct BranchNames {
  const char *norm, *site;
};
BranchNames names_of(const SelfAttention& /*attention*/) { return {"input_layernorm", "attention"}; }
BranchNames names_of(const CrossAttention& /*attention*/) { return {"pre_cross_attn_layernorm", "cross attention"}; }
BranchNames names_of(const Mlp& /*mlp*/) { return {"pre_mlp_layernorm", "mlp"}; }

BranchNames names_of(const Branch& branch) {
  return std::visit([](const auto& inner) { return names_of(inner); }, branch.inner);
}

}  // namespace

std::string Branch::norm() const { return names_of(*this).norm; }
std::string Branch::out_norm() const { return linears(1).back().name + ".post_layernorm"; }
std::string Branch::site() const { return names_of(*this).site; }

std::vector<Linear> Branch::linears(std::int64_t hidden) const {
  return std::visit([&](const auto& part) { return linears_of(part, hidden); }, inner);
}

Kept Branch::kept(int tp, bool rms_norm, const Recomputed& again) const {
  return std::visit([&](const auto& part) { return kept_by(part, tp, rms_norm, again); }, inner);
}

Kept Branch::weight_inputs(int tp, const Recomputed& again) const {
  return std::visit([&](const auto& part) { return weight_inputs_of(part, tp, again); }, inner);
}

double seen_share(const SelfAttention& attention, std::int64_t length) {
  if (!attention.causal) return 1;
  const std::int64_t window = attention.variant.sliding_window;
  if (window == 0 || window >= length) return 0.5;
  const double part = static_cast<double>(window) / static_cast<double>(length);
  return part - part * part / 2;
}

bool LayerSpec::cross_attention() const {
  return std::ranges::any_of(branches, [](const Branch& b) { return std::holds_alternative<CrossAttention>(b.inner); });
}

}  // namespace megatron::plan
