#include "megatron/model/decoding/token_graph.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <utility>
#include <variant>

#include "megatron/base/error.h"
#include "megatron/model/attention.h"
#include "megatron/plan/parameters/output_bias.h"

// b sequences, h hidden, n heads, d head size, f feed-forward features.
namespace megatron::model {
namespace {

/// Whether the kernels multiply by `weight`: in its dtype, and of which a row fits into a block's shared memory.
bool serves(const parallel::ParameterPtr& weight) {
  constexpr std::int64_t kMostRowBytes = 90 * 1024;
  const at::Tensor& value = weight->value;
  return weight->packed.quantized() == nullptr && value.size(1) * value.element_size() <= kMostRowBytes;
}

bool serves(const plan::SelfAttention& attention) {
  return attention.causal && !attention.distance_bias && !attention.latents && !attention.variant.qk_layernorm_full &&
         attention.head_size <= kernels::kMostTokenHeadSize;
}

/// Whether TokenGraph computes such a layer.
bool serves(const Block& block) {
  const auto& branches = block.branches();
  if (branches.size() != 2 || block.residual_after_norm(0) || block.residual_after_norm(1)) return false;
  const auto* const attention = std::get_if<plan::SelfAttention>(&branches[0].spec.inner);
  const bool known =
      attention != nullptr && serves(*attention) && std::holds_alternative<plan::Mlp>(branches[1].spec.inner);
  return known && std::ranges::all_of(branches, [](const BranchModules& branch) {
           return serves(branch.out.weight()) &&
                  std::ranges::all_of(branch.in, [](const auto& layer) { return serves(layer.weight()); });
         });
}

/// Rows of a cache of which the product behind attention puts the parts together itself: each of its blocks reads them.
constexpr std::int64_t kFewRows = 1024;

at::Tensor value_of(const parallel::ParameterPtr& parameter) {
  return parameter ? parameter->arrived().detach() : at::Tensor();
}

/// Has the product read norm(x).
void normalize(kernels::TokenProduct& product, const Norm& norm) {
  if (!norm.weight) return;
  product.gain = norm.factor().contiguous();
  product.shift = norm.offset();
  product.epsilon = norm.epsilon;
}

/// `norm` of x.
kernels::TokenNorm norm_of_rows(const Norm& norm, const at::Tensor& x, const at::Tensor& y) {
  return {.x = x, .y = y, .gain = norm.factor().contiguous(), .shift = norm.offset(), .epsilon = norm.epsilon};
}

kernels::TokenNorm norm_of_heads(const BranchModules& branch, const at::Tensor& qkv) {
  kernels::TokenNorm norm = norm_of_rows(branch.head_norms[0], qkv, qkv);
  norm.key_gain = branch.head_norms[1].factor().contiguous();
  norm.key_shift = branch.head_norms[1].offset();
  norm.sharing = branch.heads / branch.groups;
  return norm;
}

/// Has what the product gives pass the norm that its branch ends with, if any, before it is added.
std::optional<kernels::TokenNorm> ended_by(const BranchModules& branch, kernels::TokenProduct& product,
                                           const at::Tensor& given) {
  if (!branch.out_norm) return {};
  kernels::TokenNorm norm = norm_of_rows(*branch.out_norm, given, product.y);
  norm.add = product.add;
  product.y = given;
  product.add = at::Tensor();
  return norm;
}

}  // namespace

ModelEnds ends_of(const plan::ModelShape& shape, const parallel::ParameterStore& parameters) {
  if (!shape.predicts_tokens() || shape.token_types > 0 || shape.masked_lm_head) return {};
  return {.words = parameters.get(plan::kWordEmbedding),
          .positions = shape.learned_positions ? parameters.get("embedding.position_embeddings.weight") : nullptr,
          .output = parameters.get(shape.tied_output ? plan::kWordEmbedding : plan::kOutputMatrix),
          .output_bias = plan::has_output_bias(shape) ? parameters.get("output_layer.bias") : nullptr};
}

std::unique_ptr<TokenGraph> TokenGraph::of(const TransformerOptions& options, const StageModules& modules,
                                           const ModelEnds& ends, KvCache& cache) {
  if (!ends.words || options.shape.lora || cache.keys.empty() || !serves(ends.words) || !serves(ends.output)) return {};
  const at::Tensor& keys = cache.keys.front();
  const kernels::TokenKernels* const kernels = kernels::token_kernels(keys.device());
  if (kernels == nullptr || keys.size(1) > kMostSequences || !modules.final_norm ||
      !std::ranges::all_of(modules.blocks, [](const Block& block) { return serves(block); }))
    return {};
  return std::unique_ptr<TokenGraph>(new TokenGraph(options, modules, ends, cache, *kernels));
}

TokenGraph::TokenGraph(const TransformerOptions& options, const StageModules& modules, const ModelEnds& ends,
                       KvCache& cache, const kernels::TokenKernels& kernels)
    : cache_(cache), kernels_(kernels), tensor_(cache.keys.front().options()), batch_(cache.keys.front().size(1)) {
  const plan::ModelShape& shape = options.shape;
  const auto ids = tensor_.dtype(at::kLong);
  state_ = {.token_b = at::zeros({batch_}, ids),
            .length_b = at::zeros({batch_}, ids),
            .padding_b = cache.padding.defined() ? cache.padding.to(ids).contiguous() : at::zeros({batch_}, ids),
            .chosen_b = at::zeros({batch_}, ids)};
  std::int64_t numbers = 0;
  for (const Block& block : modules.blocks) {
    const BranchModules& branch = block.attention();
    numbers = std::max(numbers, kernels::token_scratch(batch_, branch.heads, branch.head_size, cache.capacity));
  }
  scratch_ = at::empty({numbers}, tensor_.dtype(tensor_.dtype() == at::kDouble ? at::kDouble : at::kFloat));
  const at::Tensor stream = rows(shape.hidden);
  embedding_ = {.words = value_of(ends.words),
                .places = value_of(ends.positions),
                .offset = modules.position_offset(),
                .scale = modules.embedding_scale(),
                .y = stream};
  for (std::size_t l = 0; l < modules.blocks.size(); ++l) layers_.push_back(layer_of(modules, l, stream));
  for (Layer& layer : layers_) {
    if (cache.capacity > kFewRows || layer.attention.head_size % 8 != 0) continue;
    layer.attention.y = layer.out.x = at::Tensor();
    layer.out.attention = &layer.attention;
    layer.out.state = &state_;
  }
  logits_ = rows(shape.vocab);
  output_ = {.x = stream, .weight = value_of(ends.output).narrow(0, 0, shape.vocab), .y = logits_};
  if (ends.output_bias) output_.bias = value_of(ends.output_bias).narrow(0, 0, shape.vocab);
  normalize(output_, *modules.final_norm);
  output_.factor = modules.output_scale();
  output_.soft_cap = shape.logit_soft_cap;
}

at::Tensor TokenGraph::rows(std::int64_t features) const { return at::empty({batch_, features}, tensor_); }

TokenGraph::Layer TokenGraph::layer_of(const StageModules& modules, std::size_t number,
                                       const at::Tensor& stream) const {
  const Block& block = modules.blocks[number];
  const BranchModules &attention = block.branches()[0], &mlp = block.branches()[1];
  const auto& spec = std::get<plan::SelfAttention>(attention.spec.inner);
  const auto& inner = std::get<plan::Mlp>(mlp.spec.inner);
  const at::Tensor w_qkv = value_of(attention.in.front().weight()), w_out = value_of(attention.out.weight());
  const at::Tensor w_in = value_of(mlp.in.front().weight()), w_end = value_of(mlp.out.weight());
  const at::Tensor qkv = rows(w_qkv.size(0)), attended = rows(w_out.size(1)), between = rows(stream.size(1)),
                   inside = rows(w_end.size(1));
  Layer layer;
  layer.qkv = {.x = stream, .weight = w_qkv, .y = qkv, .bias = value_of(attention.in.front().bias())};
  normalize(layer.qkv, attention.norm);
  layer.attention = {.qkv = qkv,
                     .keys = cache_.keys[number],
                     .values = cache_.values[number],
                     .y = attended,
                     .heads = attention.heads,
                     .groups = attention.groups,
                     .head_size = attention.head_size,
                     .scale = spec.scale,
                     .soft_cap = spec.variant.attn_logit_softcapping,
                     .window = spec.variant.sliding_window,
                     .rope = modules.rope_of(spec),
                     .sinks = sink_scores(attention),
                     .scratch = scratch_};
  layer.out = {.x = attended, .weight = w_out, .y = between, .bias = value_of(attention.out.bias()), .add = stream};
  layer.expand = {.x = block.reads_same_stream(0) ? stream : between,
                  .weight = w_in,
                  .y = inside,
                  .bias = value_of(mlp.in.front().bias()),
                  .form = block.options().activation,
                  .gated = inner.gated};
  normalize(layer.expand, block.shares_norm(0) ? attention.norm : mlp.norm);
  layer.reduce = {.x = inside, .weight = w_end, .y = stream, .bias = value_of(mlp.out.bias()), .add = between};
  if (!attention.head_norms.empty()) layer.heads = norm_of_heads(attention, qkv);
  layer.out_norm = ended_by(attention, layer.out, rows(stream.size(1)));
  layer.end_norm = ended_by(mlp, layer.reduce, rows(stream.size(1)));
  return layer;
}

void TokenGraph::launch() const {
  kernels_.embed(embedding_, state_);
  for (const Layer& layer : layers_) {
    kernels_.multiply(layer.qkv);
    if (layer.heads) kernels_.normalize(*layer.heads);
    kernels_.attend(layer.attention, state_);
    kernels_.multiply(layer.out);
    if (layer.out_norm) kernels_.normalize(*layer.out_norm);
    kernels_.multiply(layer.expand);
    kernels_.multiply(layer.reduce);
    if (layer.end_norm) kernels_.normalize(*layer.end_norm);
  }
  kernels_.multiply(output_);
  kernels_.choose(logits_, state_);
}

void TokenGraph::feed(const std::vector<std::int64_t>& tokens) {
  if (std::ssize(tokens) != batch_) throw std::logic_error("each sequence of a cache is fed a token");
  state_.token_b.copy_(at::tensor(tokens, at::kLong));
  state_.length_b.fill_(cache_.length);
}

void TokenGraph::step() {
  if (cache_.length >= cache_.capacity)
    throw std::logic_error(concat("a cache of ", cache_.capacity, " rows cannot take ", cache_.length, " + 1"));
  cache_.length += 1;
  if (!std::exchange(warm_, true)) return launch();
  if (!graph_) graph_ = kernels_.capture([this] { launch(); });
  graph_->run();
}

std::vector<std::int64_t> TokenGraph::chosen() const {
  const at::Tensor ids = state_.chosen_b.cpu();
  return {ids.const_data_ptr<std::int64_t>(), ids.const_data_ptr<std::int64_t>() + batch_};
}

}  // namespace megatron::model
