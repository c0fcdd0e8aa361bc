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
#include "megatron/model/layer_walk.h"
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
         !attention.gated() && attention.head_size <= kernels::kMostTokenHeadSize;
}
bool serves(const plan::CrossAttention&) { return false; }
bool serves(const plan::Mlp&) { return true; }
bool serves(const plan::Experts&) { return false; }

/// Whether TokenGraph computes such a layer.
bool serves(const Block& block) {
  const auto& branches = block.branches();
  for (std::size_t i = 0; i < branches.size(); ++i) {
    const BranchModules& branch = branches[i];
    const auto known = [](const auto& inner) { return serves(inner); };
    if (block.residual_after_norm(i) || !std::visit(known, branch.spec.inner) || !serves(branch.out.weight()) ||
        !std::ranges::all_of(branch.in, [](const auto& layer) { return serves(layer.weight()); }))
      return false;
  }
  return true;
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
  const auto widened = [&](const at::TensorOptions& own) {
    return stream_options(options.shape, own).dtype() != own.dtype();
  };
  if (!ends.words || widened(ends.words->value.options()) || options.shape.lora || cache.keys.empty() ||
      !serves(ends.words) || !serves(ends.output))
    return {};
  const at::Tensor& keys = cache.keys.front();
  const kernels::TokenKernels* const kernels = kernels::token_kernels(keys.device());
  if (kernels == nullptr || keys.size(1) > kMostSequences || !modules.final_norm ||
      !std::ranges::all_of(modules.blocks, [](const Block& block) { return serves(block); }))
    return {};
  return std::unique_ptr<TokenGraph>(new TokenGraph(options, modules, ends, cache, *kernels));
}

/// What layers compute of the stream, which lies in two tensors in turns: a branch reads one, and with what it adds it
/// is the other. A norm of the stream is folded into the product that reads it.
class TokenGraph::Recorder {
 public:
  Recorder(TokenGraph& graph, const StageModules& modules, const at::Tensor& stream)
      : graph_(graph),
        modules_(modules),
        read_(stream),
        stream_(stream),
        after_(graph.rows(stream.size(1))),
        given_(graph.rows(stream.size(1))),
        norm_(&modules.blocks.front().input_norm()) {}

  const at::Tensor& stream() const { return stream_; }

  void enter(std::size_t layer) {
    layer_ = layer;
    block_ = &modules_.blocks[layer];
  }

  // Those of layer_walk.h.
  void project(const parallel::ColumnParallelLinear& linear) {
    projected_ = graph_.rows(linear.weight()->value.size(0));
    add(product_of(linear, projected_));
  }

  void normalize_heads(const BranchModules& branch) { add(norm_of_heads(branch, projected_)); }

  void attend(const plan::SelfAttention& attention, const BranchModules& branch) {
    const KvCache& cache = graph_.cache_;
    const bool whole = cache.capacity > kFewRows || branch.head_size % 8 != 0;
    inside_ = whole ? graph_.rows(branch.out.weight()->value.size(1)) : at::Tensor();
    add(kernels::TokenAttention{.qkv = projected_,
                                .keys = cache.keys[layer_],
                                .values = cache.values[layer_],
                                .y = inside_,
                                .heads = branch.heads,
                                .groups = branch.groups,
                                .head_size = branch.head_size,
                                .scale = attention.scale,
                                .soft_cap = attention.variant.attn_logit_softcapping,
                                .window = attention.variant.sliding_window,
                                .rope = modules_.rope_of(attention),
                                .sinks = sink_scores(branch),
                                .scratch = graph_.scratch_});
    if (!whole) in_parts_ = &std::get<kernels::TokenAttention>(graph_.launches_.back());
  }

  void expand(const plan::Mlp& mlp, const BranchModules& branch) {
    inside_ = graph_.rows(branch.out.weight()->value.size(1));
    kernels::TokenProduct product = product_of(branch.in.front(), inside_);
    product.form = block_->options().activation;
    product.gated = mlp.gated;
    add(std::move(product));
  }

  void leave(const BranchModules& branch, std::size_t index, const Norm* next) {
    kernels::TokenProduct product = {.x = inside_,
                                     .weight = value_of(branch.out.weight()),
                                     .y = after_,
                                     .bias = value_of(branch.out.bias()),
                                     .add = stream_};
    if ((product.attention = std::exchange(in_parts_, nullptr)) != nullptr) product.state = &graph_.state_;
    auto norm = ended_by(branch, product, given_);
    add(std::move(product));
    if (norm) add(std::move(*norm));
    if (!block_->reads_same_stream(index)) read_ = after_;
    if (!block_->shares_norm(index)) norm_ = next;
    std::swap(stream_, after_);
  }

  // serves() has refused the model.
  [[noreturn]] void take_gates(const BranchModules&) { refuse(); }
  [[noreturn]] void gate() { refuse(); }
  [[noreturn]] void attend_latents(const plan::SelfAttention&, const BranchModules&) { refuse(); }
  [[noreturn]] void attend_across(const plan::CrossAttention&, const BranchModules&) { refuse(); }
  [[noreturn]] void route(const plan::Experts&, const BranchModules&) { refuse(); }

 private:
  [[noreturn]] static void refuse() { throw std::logic_error("a graph of a token has no launches of such a layer"); }

  void add(Launch launch) { graph_.launches_.push_back(std::move(launch)); }

  /// Of the norm of what the branch reads.
  kernels::TokenProduct product_of(const parallel::ColumnParallelLinear& linear, const at::Tensor& y) const {
    kernels::TokenProduct product = {
        .x = read_, .weight = value_of(linear.weight()), .y = y, .bias = value_of(linear.bias())};
    normalize(product, *norm_);
    return product;
  }

  TokenGraph& graph_;
  const StageModules& modules_;
  const Block* block_ = nullptr;
  std::size_t layer_ = 0;
  at::Tensor read_, stream_, after_;  ///< what the branch reads; the stream before it and after it
  at::Tensor given_;                  ///< what a branch gives, where a norm follows
  at::Tensor projected_, inside_;     ///< what the branch's first product gives, and what its last one reads
  const Norm* norm_;                  ///< of what the branch reads
  const kernels::TokenAttention* in_parts_ = nullptr;  ///< which the branch's last product puts together
};

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
  Recorder recorder(*this, modules, stream);
  const auto& blocks = modules.blocks;
  for (std::size_t l = 0; l < blocks.size(); ++l) {
    recorder.enter(l);
    walk(blocks[l], l + 1 < blocks.size() ? &blocks[l + 1].input_norm() : &*modules.final_norm, recorder);
  }
  logits_ = rows(shape.vocab);
  output_ = {.x = recorder.stream(), .weight = value_of(ends.output).narrow(0, 0, shape.vocab), .y = logits_};
  if (ends.output_bias) output_.bias = value_of(ends.output_bias).narrow(0, 0, shape.vocab);
  normalize(output_, *modules.final_norm);
  output_.factor = modules.output_scale();
  output_.soft_cap = shape.logit_soft_cap;
}

at::Tensor TokenGraph::rows(std::int64_t features) const { return at::empty({batch_, features}, tensor_); }

void TokenGraph::launch() const {
  kernels_.embed(embedding_, state_);
  for (const Launch& launch : launches_) {
    if (const auto* const product = std::get_if<kernels::TokenProduct>(&launch)) kernels_.multiply(*product);
    if (const auto* const attention = std::get_if<kernels::TokenAttention>(&launch))
      kernels_.attend(*attention, state_);
    if (const auto* const norm = std::get_if<kernels::TokenNorm>(&launch)) kernels_.normalize(*norm);
  }
  kernels_.multiply(output_);
  if (draws_)
    kernels_.draw(logits_, *draws_, state_);
  else
    kernels_.choose(logits_, state_);
  if (list_.defined()) kernels_.shortlist(logits_, list_, list_temperature_);
}

void TokenGraph::feed(const std::vector<std::int64_t>& tokens) {
  if (std::ssize(tokens) != batch_) throw std::logic_error("each sequence of a cache is fed a token");
  state_.token_b.copy_(at::tensor(tokens, at::kLong));
  state_.length_b.fill_(cache_.length);
}

void TokenGraph::draw_by(const kernels::TokenDraws& draws) {
  draws_ = draws;
  for (at::Tensor* const each : {&draws_->key_b, &draws_->copy_b}) *each = each->to(tensor_.device());
}

void TokenGraph::list_likeliest(std::int64_t count, double temperature) {
  list_ = at::empty({batch_, 2 + 2 * count}, tensor_.dtype(at::kDouble));
  list_temperature_ = temperature;
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
