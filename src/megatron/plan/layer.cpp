#include "megatron/plan/layer.h"

#include <algorithm>
#include <cmath>

#include "megatron/base/error.h"

namespace megatron::plan {
namespace {

using Split = Linear::Split;

/// What makes latents is whole on each rank, which has a part of its gradient by way of its own heads.
std::vector<Linear> linears_of_latents(const SelfAttention& attention, std::int64_t hidden) {
  const Latents& latents = *attention.latents;
  const std::int64_t heads = attention.heads;
  std::vector<Linear> all;
  if (latents.q_rank > 0)
    all.push_back({.name = "self_attention.linear_q_down_proj",
                   .outputs = latents.q_rank,
                   .inputs = hidden,
                   .split = Split::Whole,
                   .head_size = latents.q_rank,
                   .head_norms = {"self_attention.q_layernorm"}});
  all.push_back({.name = latents.q_rank > 0 ? "self_attention.linear_q_up_proj" : "self_attention.linear_q_proj",
                 .outputs = heads * latents.query(),
                 .inputs = latents.q_rank > 0 ? latents.q_rank : hidden});
  all.push_back({.name = "self_attention.linear_kv_down_proj",
                 .outputs = latents.cached(),
                 .inputs = hidden,
                 .split = Split::Whole,
                 .head_size = latents.kv_rank,
                 .head_norms = {"self_attention.kv_layernorm"}});
  all.push_back({.name = "self_attention.linear_kv_up_proj",
                 .outputs = heads * (latents.nope + latents.value),
                 .inputs = latents.kv_rank});
  all.push_back({.name = "self_attention.linear_proj",
                 .outputs = hidden,
                 .inputs = attention.value_rows(),
                 .split = Split::Inputs});
  return all;
}

std::vector<Linear> linears_of(const SelfAttention& attention, std::int64_t hidden) {
  if (attention.latents) return linears_of_latents(attention, hidden);
  return {{.name = "self_attention.linear_qkv",
           .outputs = attention.qkv_rows(),
           .inputs = hidden,
           .bias = attention.qkv_bias(),
           .split = Split::Groups,
           .head_size = attention.head_size,
           .head_norms = attention.variant.qk_layernorm
                             ? std::vector<std::string>{"self_attention.q_layernorm", "self_attention.k_layernorm"}
                             : std::vector<std::string>{},
           .full_norms = attention.variant.qk_layernorm_full,
           .plain_norms = attention.variant.qk_l2_norm},
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

/// Router, then each expert's two layers, then those of the shared one. `each`: or of one expert for all.
std::vector<Linear> linears_of_experts(const Experts& experts, std::int64_t hidden, bool each) {
  std::vector<Linear> all{{.name = "mlp.router",
                           .outputs = experts.count,
                           .inputs = hidden,
                           .bias = experts.router.linear_bias,
                           .split = Split::Whole}};
  const auto add = [&](const Mlp& mlp, const std::string& prefix, std::int64_t expert, double share,
                       std::int64_t alike = 1) {
    all.push_back({.name = prefix + "linear_fc1",
                   .outputs = mlp.first_rows(),
                   .inputs = hidden,
                   .bias = mlp.bias,
                   .split = mlp.gated ? Split::Halves : Split::Outputs,
                   .expert = expert,
                   .share = share,
                   .alike = alike});
    all.push_back({.name = prefix + "linear_fc2",
                   .outputs = hidden,
                   .inputs = mlp.width,
                   .bias = mlp.bias,
                   .split = Split::Inputs,
                   .expert = expert,
                   .share = share,
                   .alike = alike});
  };
  const double share = static_cast<double>(experts.top_k) / static_cast<double>(experts.count);
  for (std::int64_t e = 0; e < (each ? experts.count : 1); ++e)
    add(experts.expert, "mlp.experts.local_experts." + std::to_string(e) + ".", e, share, each ? 1 : experts.count);
  if (experts.shared_width == 0) return all;
  add(experts.shared(), "mlp.shared_experts.", -1, 1);
  if (experts.shared_gate)
    all.push_back({.name = "mlp.shared_experts.gate", .outputs = 1, .inputs = hidden, .split = Split::Whole});
  return all;
}

std::vector<Linear> linears_of(const Experts& experts, std::int64_t hidden) {
  return linears_of_experts(experts, hidden, /*each=*/true);
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
  // Gates, and what they multiply, which attention keeps where it is not computed again.
  if (attention.gated()) kept.per_token += again.core_attention ? 2 * queries : queries;
  if (attention.latents) {  // latents before their norms, with the statistics of these
    const Latents& latents = *attention.latents;
    kept.per_token += latents.q_rank + latents.kv_rank;
    kept.wide_per_token += (rms_norm ? 1 : 2) * (latents.q_rank > 0 ? 2 : 1);
    return kept;
  }
  const config::AttentionVariant& variant = attention.variant;
  if (variant.qk_layernorm || variant.qk_l2_norm) {  // queries and keys as they were, with each head's statistics
    const bool one_each = rms_norm || variant.qk_l2_norm;
    kept.per_token += queries + keys;
    kept.wide_per_token += variant.qk_layernorm_full ? 2 : (one_each ? 1 : 2) * (queries + keys) / attention.head_size;
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

/// Numbers of 4 bytes that say where a token goes: its experts, and its rows among theirs.
std::int64_t route_words(const Experts& experts) { return 4 * experts.top_k; }

Kept kept_by(const Experts& experts, int tp, bool rms_norm, const Recomputed& again) {
  if (again.mlp) return {};
  const Recomputed activations{.gelu = true};  // in the pass in which backward needs them
  const Kept of_one = kept_by(experts.expert, tp, rms_norm, activations);
  Kept kept{.per_token = experts.top_k * of_one.per_token};
  // Logits; what each expert counts; which experts; the routes.
  kept.wide_per_token = experts.count + experts.top_k + 2 * experts.top_k + route_words(experts);
  if (experts.shared_width == 0) return kept;
  kept.per_token += kept_by(experts.shared(), tp, rms_norm, activations).per_token;
  if (experts.shared_gate) ++kept.wide_per_token;
  return kept;
}

Kept weight_inputs_of(const SelfAttention& attention, int tp, const Recomputed& /*again*/) {
  const auto [queries, keys] = widths_of(attention, tp);
  if (attention.latents) {  // what each product reads, and the gradient of what it gave
    const Latents& latents = *attention.latents;
    const std::int64_t heads = attention.heads / tp;
    return {.per_token = queries + heads * (latents.query() + latents.nope + latents.value) + 2 * latents.q_rank +
                         2 * latents.kv_rank + latents.rope};
  }
  // Of linear_proj's input, with gates, both factors; of linear_qkv's gradient theirs.
  return {.per_token = (attention.gated() ? 4 : 2) * queries + 2 * keys};
}

Kept weight_inputs_of(const CrossAttention& attention, int tp, const Recomputed& /*again*/) {
  const std::int64_t queries = attention.query_rows() / tp;
  return {.per_token = 2 * queries, .per_encoder_token = 2 * queries};
}

Kept weight_inputs_of(const Mlp& mlp, int tp, const Recomputed& again) {
  const std::int64_t fc1 = mlp.first_rows() / tp;
  return {.per_token = fc1 + (again.gelu && !again.mlp ? fc1 : mlp.width / tp)};
}

/// Products of experts are put off with what they read, an activation times what the expert counts.
Kept weight_inputs_of(const Experts& experts, int tp, const Recomputed& /*again*/) {
  const auto of = [&](const Mlp& mlp) { return (mlp.first_rows() + mlp.width) / tp; };
  return {.per_token = experts.top_k * of(experts.expert) + (experts.shared_width > 0 ? of(experts.shared()) : 0),
          .wide_per_token = route_words(experts)};
}

struct BranchNames {
  const char *norm, *site, *last;  ///< last: of the linear layers
};
BranchNames names_of(const SelfAttention& /*attention*/) {
  return {"input_layernorm", "attention", "self_attention.linear_proj"};
}
BranchNames names_of(const CrossAttention& /*attention*/) {
  return {"pre_cross_attn_layernorm", "cross attention", "cross_attention.linear_proj"};
}
BranchNames names_of(const Mlp& /*mlp*/) { return {"pre_mlp_layernorm", "mlp", "mlp.linear_fc2"}; }
BranchNames names_of(const Experts& /*experts*/) { return {"pre_mlp_layernorm", "mlp", "mlp"}; }

BranchNames names_of(const Branch& branch) {
  return std::visit([](const auto& inner) { return names_of(inner); }, branch.inner);
}

}  // namespace

std::string Branch::norm() const { return names_of(*this).norm; }
std::string Branch::out_norm() const { return concat(names_of(*this).last, ".post_layernorm"); }
std::string Branch::site() const { return names_of(*this).site; }

std::vector<Linear> Branch::linears(std::int64_t hidden) const {
  return std::visit([&](const auto& part) { return linears_of(part, hidden); }, inner);
}

std::vector<Linear> Branch::kinds(std::int64_t hidden) const {
  const auto* const experts = std::get_if<Experts>(&inner);
  return experts != nullptr ? linears_of_experts(*experts, hidden, /*each=*/false) : linears(hidden);
}

std::int64_t Experts::capacity(std::int64_t tokens) const {
  const double even = static_cast<double>(tokens * top_k) / static_cast<double>(count);
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(even * capacity_factor)));
}

Kept Branch::kept(int tp, bool rms_norm, const Recomputed& again) const {
  return std::visit([&](const auto& part) { return kept_by(part, tp, rms_norm, again); }, inner);
}

Kept Branch::weight_inputs(int tp, const Recomputed& again) const {
  return std::visit([&](const auto& part) { return weight_inputs_of(part, tp, again); }, inner);
}

double seen_share(const SelfAttention& attention, std::int64_t length) {
  const double sides = attention.causal ? 1 : 2;
  const std::int64_t window = attention.variant.sliding_window;
  if (window == 0 || window >= length) return sides / 2;
  const double part = static_cast<double>(window) / static_cast<double>(length);
  return sides * (part - part * part / 2);
}

bool LayerSpec::cross_attention() const {
  return std::ranges::any_of(branches, [](const Branch& b) { return std::holds_alternative<CrossAttention>(b.inner); });
}

}  // namespace megatron::plan
