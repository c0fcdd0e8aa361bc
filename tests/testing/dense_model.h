#pragma once
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/erf.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "megatron/model/transformer_stage.h"
#include "tests/testing/dense_parts.h"
#include "tests/testing/dense_router.h"
#include "tests/testing/distance_bias.h"
#include "tests/testing/rope.h"
#include "tests/testing/stores.h"

// The truth of the model's tests: a GPT, a BERT or a T5, written out with plain ATen operators in float64,
// differentiated by autograd. It shares with the product the names of the weights and the definition of the dropout
// streams, and no code of an operator.
namespace megatron::testing {

class DenseModel {
 public:
  /// `weights`: full tensors by name, leaves that require gradients.
  DenseModel(model::TransformerOptions options, const Tensors& weights) : o_(options), w_(weights) {}

  /// [b, s, h] behind the last norm.
  at::Tensor states(const model::Batch& batch, bool training) const {
    if (o_.shape.encoder_decoder()) return t5_states(batch, training);
    const auto ids = batch.tokens_bs;
    const std::int64_t s = ids.size(1);
    auto x = at::embedding(w("embedding.word_embeddings.weight"), ids);
    if (o_.shape.learned_positions)
      x = x + at::embedding(w("embedding.position_embeddings.weight"), positions_of(batch) + o_.shape.position_offset);
    if (o_.shape.token_types > 0)
      x = x + at::embedding(w("embedding.tokentype_embeddings.weight"), batch.token_types_bs);
    if (!o_.shape.residual_after_norm && !o_.shape.embedding_norm) x = x * mask("embedding", batch, s, training);
    for (std::int64_t l = 0; l < o_.shape.num_layers; ++l)
      x = block(l == 0 ? x * first_scale() : x, l, batch, training);
    return norm(x, o_.shape.stack() + "final_layernorm");
  }

  /// [b, s, vocab]
  at::Tensor logits(const model::Batch& batch, bool training) const { return logits_of(states(batch, training)); }

  /// Sum of mask * loss, e = label_smoothing as PyTorch defines it, and a sentence head's loss over samples.
  at::Tensor loss_sum(const model::Batch& batch, bool training) const {
    const auto x = states(batch, training);
    const auto log_p = at::log_softmax(logits_of(x), -1);
    const auto valid = batch.labels_bs.clamp(0, o_.shape.vocab - 1).unsqueeze(-1);
    const auto nll = -log_p.gather(-1, valid).squeeze(-1), mean = -log_p.mean(-1);
    const auto losses = nll * (1 - o_.label_smoothing) + mean * o_.label_smoothing;
    auto sum = batch.loss_mask_bs.defined() ? (losses * batch.loss_mask_bs).sum() : losses.sum();
    if (router_losses_.defined()) sum = sum + (router_losses_ - router_losses_.detach());  // in gradients alone
    router_losses_ = at::Tensor();
    return o_.shape.sentence_head ? sum + sentence_loss(x, batch.sentence_labels_b) : sum;
  }

 protected:
  at::Tensor w(const std::string& name) const { return w_.at(name); }
  static at::Tensor positions_of(const model::Batch& batch) {
    const auto& ids = batch.position_ids_bs;
    return ids.defined() ? ids : at::arange(batch.tokens_bs.size(1)).expand_as(batch.tokens_bs);
  }
  double first_scale() const {
    return o_.shape.embedding_scale *
           (o_.shape.root_scaled_words ? std::sqrt(static_cast<double>(o_.shape.hidden)) : 1);
  }
  at::Tensor norm(const at::Tensor& x, const std::string& name) const {
    const auto factor = o_.shape.norm_1p ? 1 + w(name + ".weight") : w(name + ".weight");
    if (o_.shape.rms_norm) return x / (x * x).mean(-1, true).add(o_.layernorm_epsilon).sqrt() * factor;
    const auto bias = o_.shape.norm_bias ? w(name + ".bias") : at::Tensor();
    return at::layer_norm(x, {x.size(-1)}, factor, bias, o_.layernorm_epsilon);
  }
  at::Tensor linear(const at::Tensor& x, const std::string& name) const {
    const auto bias = w_.find(name + ".bias");
    return at::linear(x, w(name + ".weight"), bias == w_.end() ? at::Tensor() : bias->second);
  }
  at::Tensor logits_of(at::Tensor x) const {
    const auto output = w(o_.shape.tied_output ? "embedding.word_embeddings.weight" : "output_layer.weight")
                            .narrow(0, 0, o_.shape.vocab);
    const double cap = o_.shape.logit_soft_cap;
    if (!o_.shape.masked_lm_head) {
      const auto logits = at::linear(x, output) * o_.shape.output_scale;
      return cap > 0 ? at::tanh(logits / cap) * cap : logits;
    }
    x = linear(x, "lm_head.dense");
    x = norm(x * 0.5 * (1 + at::erf(x / std::sqrt(2.0))), "lm_head.layer_norm");
    return at::linear(x, output, w("output_layer.bias").narrow(0, 0, o_.shape.vocab));
  }
  at::Tensor sentence_loss(const at::Tensor& x, const at::Tensor& labels) const {
    return loss_of_two_classes(linear(at::tanh(linear(x.select(1, 0), "pooler.dense")), "binary_head"), labels);
  }
  at::Tensor experts(const at::Tensor& x, const std::string& p, const std::string& layer, const plan::Experts& spec,
                     const model::Batch& batch, bool training) const {
    const auto by = [&](const at::Tensor& in, const std::string& name) {
      const auto plain = [&](const at::Tensor& read) { return linear(read, p + name); };
      if (name != "router") return plain(in);
      return router_logits(in, spec.router, o_.seed, layer, batch.sample_ids, training, plain);
    };
    const auto mlp = [&](const std::string& name, const plan::Mlp& of) {
      return by(activation(by(x, name + "linear_fc1"), of), name + "linear_fc2");
    };
    const DenseExperts made = dense_experts(
        x, spec, batch.loss_mask_bs, spec.router.bias ? w(p + "router.expert_bias") : at::Tensor(), training, by, mlp);
    router_losses_ = router_losses_.defined() ? router_losses_ + made.loss : made.loss;
    return made.y;
  }
  at::Tensor activation(const at::Tensor& u, const plan::Mlp& mlp) const {
    return mlp.gated ? gated(u, mlp.width, o_.activation) : activated(u, o_.activation);
  }
  at::Tensor rotated(const at::Tensor& heads, const plan::SelfAttention& spec, const model::Batch& batch) const {
    return spec.rotary ? turned(heads, spec.local_rotary ? o_.local_rope : o_.rope, positions_of(batch)) : heads;
  }

  /// 0 or 1/(1-p) for `n` elements of a site.
  at::Tensor draw(const std::string& site, double p, const model::Batch& batch, std::int64_t n) const {
    return drawn(o_.seed, site, batch.sample_ids, n,
                 [p](std::uint32_t word) { return word < dropout_threshold(p) ? 0 : 1 / (1 - p); });
  }
  at::Tensor mask(const std::string& site, const model::Batch& batch, std::int64_t s, bool training) const {
    if (!training || o_.hidden_dropout == 0) return at::ones({}, at::kDouble);
    return draw(site, o_.hidden_dropout, batch, s * o_.shape.hidden).view({-1, s, o_.shape.hidden});
  }

  /// What the layer's own attention reads of the normed stream, by heads.
  DenseHeads heads_of(const at::Tensor& x, std::int64_t l, const model::Batch& batch) const {
    const plan::SelfAttention spec = o_.shape.layer(l).attention();
    const std::string p = o_.shape.layer_prefix(l) + "self_attention.";
    if (spec.latents)
      return dense_latents(
          x, *spec.latents, spec.heads, [&](const at::Tensor& in, const char* name) { return linear(in, p + name); },
          [&](const at::Tensor& in, const char* name) { return norm(in, p + name); },
          [&](const at::Tensor& in) { return rotated(in, spec, batch); });
    const auto qkv = linear(x, p + "linear_qkv");
    const std::int64_t b = qkv.size(0), s = qkv.size(1), n = spec.heads, g = spec.groups, d = spec.head_size, m = n / g,
                       key = spec.gated() ? 2 * m : m;
    const auto groups = qkv.view({b, s, g, key + 2, d}).permute({0, 2, 3, 1, 4});  // [b, g, queries, key, value, s, d]
    const auto each = [&](const at::Tensor& x) { return x.unsqueeze(2).expand({b, g, m, s, d}).reshape({b, n, s, d}); };
    const auto normed = [&](const at::Tensor& heads, const char* name) {  // [b, heads, s, d]
      if (spec.variant.qk_l2_norm) return heads / (heads * heads).mean(-1, true).add(o_.layernorm_epsilon).sqrt();
      if (!spec.variant.qk_layernorm_full) return spec.variant.qk_layernorm ? norm(heads, p + name) : heads;
      const std::int64_t count = heads.size(1);
      return norm(heads.transpose(1, 2).reshape({b, s, count * d}), p + name).view({b, s, count, d}).transpose(1, 2);
    };
    return {rotated(normed(groups.narrow(2, 0, m).reshape({b, n, s, d}), "q_layernorm"), spec, batch),
            rotated(each(normed(groups.select(2, key), "k_layernorm")), spec, batch), each(groups.select(2, key + 1))};
  }
  at::Tensor attention(const at::Tensor& x, std::int64_t l, const model::Batch& batch, bool training) const {
    const plan::SelfAttention spec = o_.shape.layer(l).attention();
    const auto [q, k, v] = heads_of(x, l, batch);
    const std::int64_t b = x.size(0), s = x.size(1), n = spec.heads;
    const bool both_ways = o_.shape.in_encoder(l);
    const auto lengths = both_ways || !o_.shape.encoder_decoder() ? batch.key_lengths_b : at::Tensor();
    const auto hidden = hidden_keys(b, s, both_ways, spec.variant.sliding_window, lengths, batch.first_key_bs);
    const auto bias = o_.shape.position_buckets > 0 ? distance_bias(w(plan::ModelShape::position_table(both_ways)), s,
                                                                    both_ways, o_.shape.position_max_distance)
                                                    : at::zeros({}, at::kDouble);
    auto sinks = spec.zero_sinks() ? at::zeros({n}, at::kDouble) : at::Tensor();
    if (spec.learned_sinks()) sinks = w(o_.shape.layer_prefix(l) + plan::SelfAttention::kSinks);
    const std::string site = "layer " + std::to_string(l) + "/attention";
    const auto y = weighted(q, k, v, hidden, bias, site, batch, training, spec.variant.attn_logit_softcapping, sinks);
    return spec.gated() ? y * gates_of(linear(x, o_.shape.layer_prefix(l) + "self_attention.linear_qkv"), spec) : y;
  }
  /// Of heads [b, n, s, d] over others [b, n, k, d]; `sinks` [n]: scores without values.
  at::Tensor weighted(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& hidden,
                      const at::Tensor& bias, const std::string& site, const model::Batch& batch, bool training,
                      double cap = 0, const at::Tensor& sinks = {}) const {
    const std::int64_t b = q.size(0), n = q.size(1), s = q.size(2), keys = k.size(2), d = q.size(3);
    const double own = o_.shape.attention_scale, scale = own > 0 ? own : 1 / std::sqrt(static_cast<double>(d));
    auto scores = at::matmul(q, k.transpose(-1, -2)) * scale + bias;
    if (cap > 0) scores = at::tanh(scores / cap) * cap;
    scores = scores.masked_fill(hidden, -1e300);
    if (sinks.defined()) scores = at::cat({scores, sinks.view({1, n, 1, 1}).expand({b, n, s, 1})}, -1);
    auto p = at::softmax(scores, -1).narrow(-1, 0, keys);
    if (training && o_.attention_dropout > 0)
      p = p * draw(site, o_.attention_dropout, batch, n * s * keys).view({b, n, s, keys});
    return at::matmul(p, v).transpose(1, 2).reshape({b, s, n * v.size(3)});
  }

  at::Tensor across(const at::Tensor& x, const at::Tensor& memory, const std::string& p, std::int64_t l,
                    const model::Batch& batch, bool training) const {
    const auto spec = std::get<plan::CrossAttention>(o_.shape.layer(l).branches.at(1).inner);
    const std::int64_t b = x.size(0), n = spec.heads, d = spec.head_size, keys = memory.size(1);
    const auto q = linear(x, p + "cross_attention.linear_q").view({b, -1, n, d}).transpose(1, 2);
    const auto kv = linear(memory, p + "cross_attention.linear_kv").view({b, keys, n, 2, d}).permute({0, 2, 3, 1, 4});
    const auto hidden = padding_keys(b, keys, batch.key_lengths_b);
    const auto y = weighted(q, kv.select(2, 0), kv.select(2, 1), hidden, at::zeros({}, at::kDouble),
                            "layer " + std::to_string(l) + "/cross attention", batch, training);
    return linear(y, p + "cross_attention.linear_proj");
  }

  at::Tensor t5_states(const model::Batch& batch, bool training) const {
    const auto words = w("embedding.word_embeddings.weight");
    const std::int64_t s = batch.tokens_bs.size(1), written = batch.decoder_tokens_bs.size(1);
    auto x = at::embedding(words, batch.tokens_bs) * mask("embedding", batch, s, training);
    for (std::int64_t l = 0; l < o_.shape.encoder_layers; ++l) x = block(x, l, batch, training);
    const auto memory = norm(x, "encoder.final_layernorm") * mask("encoder", batch, s, training);
    x = at::embedding(words, batch.decoder_tokens_bs) * mask("decoder embedding", batch, written, training);
    for (std::int64_t l = o_.shape.encoder_layers; l < o_.shape.num_layers; ++l)
      x = block(x, l, batch, training, memory);
    return norm(x, "decoder.final_layernorm") * mask("decoder", batch, written, training);
  }

  at::Tensor block(const at::Tensor& in, std::int64_t l, const model::Batch& batch, bool training,
                   const at::Tensor& memory = {}) const {
    const std::string p = o_.shape.layer_prefix(l), layer = "layer " + std::to_string(l);
    const plan::LayerSpec spec = o_.shape.layer(l);
    const std::int64_t s = in.size(1);
    const bool after = o_.shape.residual_after_norm;
    const auto before = [&](const at::Tensor& x, auto name) { return spec.norms.before ? norm(x, p + name) : x; };
    const auto behind = [&](const at::Tensor& y, const char* name) {
      return spec.norms.behind ? norm(y, p + name + ".post_layernorm") : y;
    };
    auto normed = before(in, "input_layernorm");
    const bool first_after = after || spec.first_after_norm;
    if (first_after && l == 0) normed = normed * mask("embedding", batch, s, training);
    auto y = behind(linear(attention(normed, l, batch, training), p + "self_attention.linear_proj"),
                    "self_attention.linear_proj");
    auto x = (first_after ? normed : in) + y * mask(layer + "/attention output", batch, s, training);
    if (memory.defined())
      x = x + across(norm(x, p + "pre_cross_attn_layernorm"), memory, p, l, batch, training) *
                  mask(layer + "/cross attention output", batch, s, training);
    if (spec.branches.back().reads == plan::Branch::Reads::OwnNorm)
      normed = before(spec.parallel ? in : x, "pre_mlp_layernorm");
    if (const plan::Experts* const mixture = spec.experts())
      return (after ? normed : x) + experts(normed, p + "mlp.", layer, *mixture, batch, training) *
                                        mask(layer + "/mlp output", batch, s, training);
    const plan::Mlp mlp = spec.mlp();
    y = activation(linear(normed, p + "mlp.linear_fc1"), mlp);
    if (o_.shape.encoder_decoder() && training && o_.hidden_dropout > 0)
      y = y * draw(layer + "/mlp inner", o_.hidden_dropout, batch, s * mlp.width).view_as(y);
    y = behind(linear(y, p + "mlp.linear_fc2"), "mlp.linear_fc2");
    return (after ? normed : x) + y * mask(layer + "/mlp output", batch, s, training);
  }

  model::TransformerOptions o_;
  Tensors w_;
  mutable at::Tensor router_losses_ = {};  ///< of the pass under way
};

}  // namespace megatron::testing
