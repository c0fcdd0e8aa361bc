#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "megatron/plan/parameters/parameters.h"

namespace megatron::testing {

struct LayerSizes {
  std::vector<std::int64_t> head_sizes = {2, 4, 6}, widths = {4, 8, 12, 18};
};

/// Makes it attention by way of latents, of which two features are rotated.
inline void add_latents(plan::SelfAttention& attention, std::int64_t q_rank, std::int64_t kv_rank, std::int64_t nope,
                        std::int64_t value) {
  attention.latents = plan::Latents{.q_rank = q_rank, .kv_rank = kv_rank, .nope = nope, .rope = 2, .value = value};
  attention.groups = attention.heads;
  attention.head_size = attention.latents->head_size();
  attention.bias = false;
  attention.variant = {.qk_layernorm = true};
  if (attention.scale == 0) attention.scale = 1 / std::sqrt(static_cast<double>(attention.latents->query()));
}

/// Layers drawn for a model of `shape`, each with sizes and kinds of its own, that one or two tensor-parallel ranks can
/// share.
inline std::vector<plan::LayerSpec> random_layers(std::uint64_t seed, const plan::ModelShape& shape,
                                                  const LayerSizes& sizes = {}) {
  std::mt19937_64 random(seed);
  const auto one_of = [&](const std::vector<std::int64_t>& values) { return values[random() % values.size()]; };
  const auto flip = [&] { return random() % 2 == 1; };
  std::vector<plan::LayerSpec> layers;
  const bool rms = flip(), one_stack = shape.encoder_layers == 0;
  for (std::int64_t l = 0; l < shape.num_layers; ++l) {
    plan::LayerSpec layer = shape.layer(l);
    layer.rms_norm = rms;
    if (one_stack && !layer.residual_after_norm) {
      constexpr plan::NormPlaces kPlaces[] = {{true, false}, {true, true}, {false, true}};
      layer.norms = kPlaces[random() % std::size(kPlaces)];
      layer.parallel = random() % 3 == 0;
    }
    if (layer.parallel && layer.norms.before && seed % 2 == 0)
      layer.branches.back().reads = plan::Branch::Reads::NormBefore;
    layer.first_after_norm = one_stack && !layer.residual_after_norm && l == 0 && seed % 3 == 0 && layer.norms.before &&
                             !layer.norms.behind && !layer.parallel;
    for (plan::Branch& branch : layer.branches) {
      if (auto* attention = std::get_if<plan::SelfAttention>(&branch.inner)) {
        attention->head_size = one_of(sizes.head_sizes);
        attention->groups = one_of({1, 2, 4});
        attention->heads = attention->groups * (attention->groups == 1 ? one_of({2, 4}) : one_of({1, 2}));
        attention->bias = flip();
        if (attention->distance_bias) {  // which has a number for each of the model's heads
          attention->heads = attention->groups = shape.num_heads;
          attention->variant = {.add_qkv_bias = flip(), .qk_layernorm = flip()};
          continue;
        }
        attention->variant = {
            .add_qkv_bias = flip(), .qk_layernorm = flip(), .sliding_window = one_of({0, 0, 1, 3, 6, 20})};
        if (!one_stack) continue;
        if (random() % 4 == 0) {
          add_latents(*attention, one_of({0, 6}), one_of({4, 8}), one_of(sizes.head_sizes), one_of(sizes.head_sizes));
          attention->variant.sliding_window = one_of({0, 3});
        }
        attention->variant.qk_layernorm_full = attention->variant.qk_layernorm && !attention->latents && rms && flip();
        attention->variant.qk_l2_norm = !attention->variant.qk_layernorm && seed % 3 == 0;
        attention->variant.attention_output_gate = !attention->latents && seed % 4 == 1;
        attention->variant.attn_logit_softcapping = flip() ? 0 : 0.5;
        constexpr const char* kSoftmax[] = {"vanilla", "learnable", "off-by-one"};
        attention->variant.softmax_type = kSoftmax[random() % std::size(kSoftmax)];
        attention->rotary = random() % 4 != 0;
        attention->local_rotary = attention->rotary && flip();
      }
      if (auto* across = std::get_if<plan::CrossAttention>(&branch.inner)) {
        across->heads = one_of({2, 4});
        across->head_size = one_of(sizes.head_sizes);
        across->bias = flip();
      }
      if (auto* mlp = std::get_if<plan::Mlp>(&branch.inner)) {
        *mlp = {.width = one_of(sizes.widths), .gated = flip(), .bias = flip(), .inner_dropout = mlp->inner_dropout};
        const bool alone = layer.norms.before && !layer.norms.behind && !layer.parallel;  // as experts have to be
        if (mlp->inner_dropout || !alone || random() % 3 != 0) continue;
        const std::int64_t count = one_of({2, 3, 8});
        branch.inner =
            plan::Experts{.expert = {.width = one_of(sizes.widths), .gated = flip()},
                          .count = count,
                          .top_k = std::min<std::int64_t>(count, one_of({1, 2, 3})),
                          .router = {.score = flip() ? plan::Router::Score::Sigmoid : plan::Router::Score::Softmax,
                                     .scaling = flip() ? 2.5 : 1,
                                     .aux_loss = flip() ? 0.3 : 0,
                                     .z_loss = flip() ? 0.2 : 0},
                          .shared_width = flip() ? one_of(sizes.widths) : 0};
        auto& experts = std::get<plan::Experts>(branch.inner);
        experts.router.unnormalized = flip() && experts.router.score == plan::Router::Score::Softmax;
        experts.shared_gate = experts.shared_width > 0 && flip();
        experts.router.bias = experts.router.score == plan::Router::Score::Sigmoid && flip();
        if (count == 8 && experts.top_k > 1 && flip()) {
          experts.router.groups = 4;
          experts.router.group_top_k = 2;
          experts.router.group_best = one_of({0, 1, 2});
        }
        experts.expert.bias = experts.router.linear_bias = experts.shared_width == 0 && flip();
        experts.router.jitter = flip() ? 0.3 : 0;
        experts.router.drawn = seed % 4 == 2;
        if (flip()) experts.capacity_factor = 0.75;
        experts.drop = flip() ? plan::Experts::Drop::Least : plan::Experts::Drop::Last;
      }
    }
    layers.push_back(std::move(layer));
  }
  return layers;
}

}  // namespace megatron::testing
