#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <algorithm>

#include <atomic>
#include <functional>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/comm/threads/local_backend.h"
#include "megatron/plan/cost/counts.h"
#include "megatron/plan/cost/memory.h"
#include "megatron/plan/parameters/adapters.h"
#include "tests/model/random_layers.h"
#include "tests/model/small_model.h"

// What the plan says that a stage keeps for its backward pass, against the bytes that it really keeps.
namespace megatron::model {
namespace {

using megatron::testing::make_store;
using megatron::testing::random_batch;
using Layers = Recompute::Layers;

/// Counts the bytes that tensors on the CPU hold.
class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t n) override {
    struct Allocation {
      c10::DataPtr memory;
      std::size_t size;
      std::atomic<std::int64_t>* live;
    };
    auto* piece = new Allocation{below_->allocate(n), n, &live_};
    live_ += static_cast<std::int64_t>(n);
    return {piece->memory.get(), piece,
            [](void* p) {
              const std::unique_ptr<Allocation> owned(static_cast<Allocation*>(p));
              *owned->live -= static_cast<std::int64_t>(owned->size);
            },
            c10::DeviceType::CPU};
  }
  void copy_data(void* to, const void* from, std::size_t n) const override { default_copy_data(to, from, n); }
  std::int64_t live() const { return live_; }

  void install() { c10::SetCPUAllocator(this, 1); }
  void remove() { c10::SetCPUAllocator(below_, 1); }

 private:
  c10::Allocator* below_ = c10::GetCPUAllocator();
  std::atomic<std::int64_t> live_ = 0;
};

CountingAllocator& counter() {
  static CountingAllocator allocator;  // outlives every tensor
  return allocator;
}

struct Mode {
  const char* name;
  std::string recompute = "none";
  std::vector<std::string> modules = {};
  std::string method = "uniform";
  std::int64_t num_layers = 0;
  bool distribute = false;
  bool gelu = true;
  bool partial = false;  ///< of a microbatch that recomputes in part, where others recompute every layer
  bool listed = false;   ///< the second of the stage's layers alone
};
const Mode kModes[] = {
    {.name = "none"},
    {.name = "GELU kept", .gelu = false},
    {.name = "attention core", .recompute = "selective", .modules = {"core_attn"}},
    {.name = "mlp", .recompute = "selective", .modules = {"mlp"}},
    {.name = "both", .recompute = "selective", .modules = {"core_attn", "mlp", "layernorm"}},
    {.name = "uniform", .recompute = "full", .num_layers = 1},
    {.name = "uniform 2", .recompute = "full", .num_layers = 2},
    {.name = "block 1", .recompute = "full", .method = "block", .num_layers = 1},
    {.name = "partial", .recompute = "full", .num_layers = 2, .partial = true},
    {.name = "partial of block 1", .recompute = "full", .method = "block", .num_layers = 1, .partial = true},
    {.name = "partial of modules", .recompute = "selective", .modules = {"core_attn", "mlp"}, .partial = true},
    {.name = "listed", .recompute = "full", .listed = true},
    {.name = "partial of a list", .recompute = "full", .partial = true, .listed = true},
    {.name = "distributed", .recompute = "full", .num_layers = 1, .distribute = true}};

/// A GPT-2, a Llama, whose two ranks share one key and value head, a BERT of the original order, or layers of a T5's
/// decoder; in float32 or bf16.
struct Kind {
  const char* name;
  bool llama;
  at::ScalarType dtype;
  bool bert = false, t5 = false;
  bool normed_embeddings = false;
};
const Kind kKinds[] = {{"gpt", false, at::kFloat},
                       {"llama", true, at::kFloat},
                       {"llama in bf16", true, at::kBFloat16},
                       {"bert", false, at::kFloat, true},
                       {"decoder of a t5", false, at::kFloat, false, true},
                       {"gpt of normed embeddings", false, at::kFloat, false, false, true}};

config::RunConfig config_of(const Kind& kind, const Mode& mode, int t, bool sp) {
  config::RunConfig config;
  config.train.dtype = kind.dtype == at::kFloat ? "fp32" : "bf16";
  config.parallel.tp = t;
  config.parallel.sp = sp;
  config.data.seq_length = 32;
  config.train.micro_batch_size = 2;
  config.train.recompute = mode.recompute;
  config.train.recompute_modules = mode.modules;
  config.train.recompute_method = mode.method;
  config.train.recompute_num_layers = mode.num_layers;
  config.train.recompute_partial_microbatches = mode.partial ? 1 : 0;
  if (mode.listed) config.train.recompute_layers = kind.t5 ? "3" : "1";
  config.train.distribute_saved_activations = mode.distribute;
  config.train.recompute_gelu = mode.gelu;
  config.model.apply_residual_connection_post_layernorm = kind.bert;
  config.model.embedding_layernorm = kind.normed_embeddings;
  config.data.decoder_seq_length = 32;
  return config;
}

TransformerOptions options_of(const Kind& kind, const Mode& mode, bool sp) {
  TransformerOptions options;
  options.shape = {.num_layers = 3,
                   .hidden = 64,
                   .num_heads = 4,
                   .ffn_hidden = 256,
                   .vocab = 10,
                   .padded_vocab = 12,
                   .max_positions = 32};
  if (kind.llama) {
    options.shape.num_groups = 1;
    options.shape.rms_norm = options.shape.gated = true;
    options.shape.linear_bias = options.shape.learned_positions = false;
    options.activation = kernels::Activation::Silu;
    options.rope.rotary_dim = 16;
  }
  options.shape.causal = !kind.bert;
  options.shape.masked_lm_head = options.shape.pooled_tasks = kind.bert;
  if (kind.t5) {
    options.shape.attention_scale = 1;
    options.shape.inner_dropout = true;
    options.shape.num_layers = 5;
    options.shape.encoder_layers = 1;
    options.shape.position_buckets = 8;
    options.shape.position_max_distance = 6;
    options.shape.linear_bias = options.shape.learned_positions = false;
  }
  options.shape.residual_after_norm = kind.bert;
  options.shape.embedding_norm = kind.normed_embeddings;
  options.hidden_dropout = options.attention_dropout = 0.1;
  options.sequence_parallel = sp;
  const auto named = [&](const std::string& module) {
    return mode.recompute == "selective" &&
           std::find(mode.modules.begin(), mode.modules.end(), module) != mode.modules.end();
  };
  const auto layers = mode.method == "block" ? Layers::Block : Layers::Uniform;
  options.recompute = {.layers = mode.recompute == "full" ? layers : Layers::None,
                       .num_layers = mode.num_layers,
                       .some_partial = mode.partial,
                       .distribute_inputs = mode.distribute,
                       .attention_core = named("core_attn"),
                       .mlp = named("mlp"),
                       .gelu = mode.gelu};
  if (mode.listed) {
    options.recompute.layers = Layers::Listed;
    options.recompute.listed.assign(static_cast<std::size_t>(options.shape.num_layers), false);
    options.recompute.listed[kind.t5 ? 3 : 1] = true;
  }
  return options;
}

/// The parameters of rank k of t that has `part`: of a model with adapters these, and its weights frozen. `slices`:
/// ranks that split an expert, 0 as many as other weights.
parallel::ParameterStore store_of(const plan::ModelShape& shape, int t, int k, at::ScalarType dtype,
                                  const plan::StageSpec& part, int slices) {
  if (slices > 0) {
    const auto specs = plan::model_parameters(
        shape, t, k, {part}, {.ep = t / slices, .rank = k / slices, .etp = slices, .etp_rank = k % slices});
    return parallel::ParameterStore(specs, plan::buffer_layout(specs, 0), dtype, at::kCPU, 1);
  }
  if (!shape.lora) return make_store(shape, t, k, {}, dtype, 1, at::kCPU, {part});
  using Gradients = parallel::ParameterStore::Gradients;
  const auto make = [&](const std::vector<plan::ParameterSpec>& specs, Gradients gradients) {
    return parallel::ParameterStore(specs, plan::buffer_layout(specs, 0), dtype, at::kCPU, 1, gradients);
  };
  parallel::ParameterStore adapters = make(plan::trained_parameters(shape, t, k, {part}), Gradients::Hold);
  adapters.add_frozen(std::make_shared<const parallel::ParameterStore>(
      make(plan::model_parameters(shape, t, k, {part}), Gradients::None)));
  return adapters;
}

struct Kept {
  std::int64_t for_backward = 0;  ///< after the forward pass
  std::int64_t for_weights = 0;   ///< after backward, the weight gradients put off
};

/// Bytes a rank of a stage in the middle, whose input and output are its neighbours' concern. `cp`: ranks that share
/// sequences, where t is 1.
Kept measure(const TransformerOptions& of_one, at::ScalarType dtype, int t, const plan::StageSpec& part,
             bool partial = false, int cp = 1) {
  const bool sp = of_one.sequence_parallel, t5 = of_one.shape.encoder_decoder();
  const at::ScalarType stream = of_one.shape.wide_stream ? at::kFloat : dtype;
  Kept kept;
  comm::run_ranks(t * cp, [&](comm::Group world) {
    const comm::Group tp = cp > 1 ? comm::Group() : world;
    TransformerOptions options = of_one;
    if (cp > 1) options.sequence.ranks = world;
    if (options.expert_slices > 0) options.experts = world;
    const auto store = store_of(options.shape, t, tp.rank(), dtype, part, options.expert_slices);
    const TransformerStage gpt(options, part, store, tp);
    auto batch = random_batch(10, 2, 32 / cp, at::kFloat);
    batch.partial_recomputation = partial;
    const std::int64_t rows = (t5 ? 64 : 32) / (sp ? t : cp);  // of the encoder's states and the stream
    store.gradient_queue().defer(true);
    for (const bool first : {true, false}) {  // which packs weights where products want that, and is not counted
      world.barrier();
      const auto before = counter().live();
      world.barrier();
      at::Tensor gradient;
      parallel::GraphRoot root;
      {
        parallel::GraphLeaf leaf(at::ones({rows, 2, 64}, stream));
        const auto y = gpt.forward(leaf.take(), batch, true);
        root = parallel::GraphRoot(y);
      }
      world.barrier();
      const auto forward = counter().live() - before;
      world.barrier();
      root.backward(at::ones({rows, 2, 64}, stream));
      world.barrier();
      const auto weights = counter().live() - before;
      world.barrier();
      if (world.rank() == 0) kept = {forward / (t * cp), weights / (t * cp)};
      parallel::run_pieces(store.gradient_queue().take());
      world.barrier();
      if (!first) {
        EXPECT_EQ(counter().live(), before) << "something is kept for ever";
      }
      world.barrier();
    }
  });
  return kept;
}

Kept measure(const Kind& kind, const Mode& mode, int t, bool sp, const plan::StageSpec& part) {
  return measure(options_of(kind, mode, sp), kind.dtype, t, part, mode.partial);
}

class ActivationBytes : public ::testing::TestWithParam<std::pair<int, bool>> {
 protected:
  void SetUp() override { counter().install(); }
  void TearDown() override { counter().remove(); }
};
INSTANTIATE_TEST_SUITE_P(TpAndSp, ActivationBytes,
                         ::testing::Values(std::pair{1, false}, std::pair{2, false}, std::pair{2, true}));

double planned_weight_bytes(const config::RunConfig& config, const plan::ModelShape& shape, const plan::StageSpec& part,
                            bool partial) {
  const schedule::Costs costs = plan::stage_costs(config, shape, {part});
  return (partial ? costs.partial_weight_bytes : costs.weight_bytes)[0];
}

void expect_planned(const Kind& kind, const Mode& mode, int t, bool sp) {
  const auto config = config_of(kind, mode, t, sp);
  const auto shape = options_of(kind, mode, sp).shape;
  const plan::StageSpec part{.first_layer = kind.t5 ? 2 : 0, .num_layers = 3, .embedding = false, .output = false};
  const auto kept = measure(kind, mode, t, sp, part);
  const auto planned = static_cast<double>(plan::stage_activation_bytes(config, shape, part, mode.partial));
  EXPECT_NEAR(static_cast<double>(kept.for_backward) / planned, 1, 0.05)
      << kept.for_backward << " bytes for " << planned;
  const double weights = planned_weight_bytes(config, shape, part, mode.partial);
  EXPECT_NEAR(static_cast<double>(kept.for_weights) / weights, 1, 0.05)
      << "weights: " << kept.for_weights << " bytes for " << weights;
}

TEST_P(ActivationBytes, AreThoseOfThePlan) {
  const auto [t, sp] = GetParam();
  for (const Kind& kind : kKinds)
    for (const Mode& mode : kModes) {
      SCOPED_TRACE(std::string(kind.name) + ", " + mode.name);
      expect_planned(kind, mode, t, sp);
    }
}

/// What adapters keep with magnitudes more than without: of all that a layer keeps too little to be seen.
TEST_P(ActivationBytes, OfMagnitudesAreThoseOfThePlan) {
  const auto [t, sp] = GetParam();
  const plan::StageSpec part{.num_layers = 3, .embedding = false, .output = false};
  for (const Kind& kind : {kKinds[0], kKinds[1], kKinds[2]})
    for (const std::size_t number : {0, 4, 5, 7, 9}) {
      const Mode& mode = kModes[number];
      SCOPED_TRACE(concat(kind.name, ", ", mode.name));
      auto config = config_of(kind, mode, t, sp);
      config.lora.rank = 4;
      TransformerOptions options = options_of(kind, mode, sp);
      std::int64_t for_backward = 0, for_weights = 0, planned = 0;
      double planned_for_weights = 0;
      for (const bool dora : {false, true}) {
        config.lora.dora = dora;
        options.shape.lora = plan::lora_of(config.lora);
        const std::int64_t sign = dora ? 1 : -1;
        const Kept kept = measure(options, kind.dtype, t, part, mode.partial);
        for_backward += sign * kept.for_backward;
        for_weights += sign * kept.for_weights;
        planned += sign * plan::stage_activation_bytes(config, options.shape, part, mode.partial);
        planned_for_weights +=
            static_cast<double>(sign) * planned_weight_bytes(config, options.shape, part, mode.partial);
      }
      EXPECT_EQ(for_backward, planned);
      EXPECT_EQ(static_cast<double>(for_weights), planned_for_weights);
      EXPECT_GT(for_weights, 0);
    }
}

/// Layers whose weights are frozen, of which each has adapters: latent attention, with latents of queries or without, a
/// mixture of experts, an encoder, layers of a T5's decoder.
TEST_P(ActivationBytes, OfAdaptersAreThoseOfThePlan) {
  const auto [t, sp] = GetParam();
  const plan::Latents with_queries{.q_rank = 8, .kv_rank = 8, .nope = 14, .rope = 2, .value = 16};
  plan::Latents without_queries = with_queries;
  without_queries.q_rank = 0;
  const plan::Experts experts{
      .expert = {.width = 96, .gated = true}, .count = 4, .top_k = 2, .shared_width = 64, .shared_gate = true};
  using Change = std::function<void(plan::ModelShape&)>;
  const auto latent = [](const plan::Latents& latents) -> Change {
    return [latents](plan::ModelShape& shape) {
      shape.latents = latents;
      shape.num_groups = 4;
      shape.head_size = 16;
      shape.linear_bias = shape.learned_positions = false;
      shape.attention.qk_layernorm = true;
    };
  };
  const std::vector<std::tuple<const char*, Kind, Change>> kinds = {
      {"latents", kKinds[0], latent(with_queries)},
      {"latents without those of queries", kKinds[0], latent(without_queries)},
      {"experts", kKinds[1], [&](plan::ModelShape& shape) { shape.experts = experts; }},
      {"experts in bf16", kKinds[2], [&](plan::ModelShape& shape) { shape.experts = experts; }},
      {"bert", kKinds[3], [](plan::ModelShape&) {}},
      {"decoder of a t5", kKinds[4], [](plan::ModelShape&) {}}};
  for (const auto& [name, kind, change] : kinds)
    for (const std::size_t number : {0, 3, 5, 7}) {
      const Mode& mode = kModes[number];
      SCOPED_TRACE(concat(name, ", ", mode.name));
      auto config = config_of(kind, mode, t, sp);
      config.lora.rank = 4;
      TransformerOptions options = options_of(kind, mode, sp);
      change(options.shape);
      options.shape.lora = plan::lora_of(config.lora);
      const plan::StageSpec part{.first_layer = kind.t5 ? 2 : 0, .num_layers = 3, .embedding = false, .output = false};
      const Kept kept = measure(options, kind.dtype, t, part);
      const auto planned = static_cast<double>(plan::stage_activation_bytes(config, options.shape, part));
      EXPECT_NEAR(static_cast<double>(kept.for_backward) / planned, 1, 0.05) << kept.for_backward << ", " << planned;
      const double weights = planned_weight_bytes(config, options.shape, part, false);
      EXPECT_NEAR(static_cast<double>(kept.for_weights) / weights, 1, 0.05) << kept.for_weights << ", " << weights;
    }
}

/// Norms of queries and keys without weights: as an RMSNorm's, in a model of LayerNorms too.
TEST_P(ActivationBytes, OfNormsWithoutWeightsAreThoseOfThePlan) {
  const auto [t, sp] = GetParam();
  const plan::StageSpec part{.num_layers = 3, .embedding = false, .output = false};
  for (const Kind& kind : {kKinds[0], kKinds[2]}) {
    auto config = config_of(kind, kModes[0], t, sp);
    TransformerOptions options = options_of(kind, kModes[0], sp);
    std::int64_t kept = 0, planned = 0;
    for (const bool normed : {false, true}) {
      options.shape.attention.qk_l2_norm = normed;
      const std::int64_t sign = normed ? 1 : -1;
      kept += sign * measure(options, kind.dtype, t, part).for_backward;
      planned += sign * plan::stage_activation_bytes(config, options.shape, part);
    }
    EXPECT_EQ(kept, planned) << kind.name;
  }
}

/// Gates of what attention gives, in every mode.
TEST_P(ActivationBytes, OfGatesAreThoseOfThePlan) {
  const auto [t, sp] = GetParam();
  const plan::StageSpec part{.num_layers = 3, .embedding = false, .output = false};
  for (const Mode& mode : kModes) {
    SCOPED_TRACE(mode.name);
    const auto config = config_of(kKinds[2], mode, t, sp);
    TransformerOptions options = options_of(kKinds[2], mode, sp);
    options.shape.attention.attention_output_gate = true;
    const Kept kept = measure(options, kKinds[2].dtype, t, part, mode.partial);
    const auto planned = static_cast<double>(plan::stage_activation_bytes(config, options.shape, part, mode.partial));
    EXPECT_NEAR(static_cast<double>(kept.for_backward) / planned, 1, 0.02);
    const double weights = planned_weight_bytes(config, options.shape, part, mode.partial);
    EXPECT_NEAR(static_cast<double>(kept.for_weights) / weights, 1, 0.02);
  }
}

/// A stream of float32 in a model of bf16, in every mode.
TEST_P(ActivationBytes, OfAWideStreamAreThoseOfThePlan) {
  const auto [t, sp] = GetParam();
  const plan::StageSpec part{.num_layers = 3, .embedding = false, .output = false};
  for (const Mode& mode : kModes) {
    auto config = config_of(kKinds[2], mode, t, sp);
    TransformerOptions options = options_of(kKinds[2], mode, sp);
    Kept kept;
    std::int64_t planned = 0, planned_weights = 0;
    for (const bool wide : {false, true}) {
      config.model.fp32_residual_connection = options.shape.wide_stream = wide;
      const std::int64_t sign = wide ? 1 : -1;
      const Kept own = measure(options, kKinds[2].dtype, t, part, mode.partial);
      kept.for_backward += sign * own.for_backward;
      kept.for_weights += sign * own.for_weights;
      planned += sign * plan::stage_activation_bytes(config, options.shape, part, mode.partial);
      planned_weights +=
          sign * static_cast<std::int64_t>(planned_weight_bytes(config, options.shape, part, mode.partial));
    }
    EXPECT_EQ(kept.for_backward, planned) << mode.name;
    EXPECT_EQ(kept.for_weights, planned_weights) << mode.name;
  }
}

/// What latents are made of, where it is dropped and so no norm gives it again: of sequence parallelism a rank's part.
TEST_P(ActivationBytes, OfDroppedEmbeddingsBeforeLatentsAreThoseOfThePlan) {
  const auto [t, sp] = GetParam();
  const plan::StageSpec part{.num_layers = 3, .embedding = false, .output = false};
  const Kind& kind = kKinds[5];
  auto config = config_of(kind, kModes[0], t, sp);
  TransformerOptions options = options_of(kind, kModes[0], sp);
  options.shape.latents = plan::Latents{.q_rank = 8, .kv_rank = 8, .nope = 14, .rope = 2, .value = 16};
  options.shape.num_groups = 4;
  options.shape.head_size = 16;
  options.shape.linear_bias = false;
  options.shape.attention.qk_layernorm = true;
  std::int64_t kept = 0, planned = 0;
  for (const double p : {0.0, 0.1}) {  // what is kept only where something is dropped
    config.model.hidden_dropout = options.hidden_dropout = p;
    const std::int64_t sign = p > 0 ? 1 : -1;
    kept += sign * measure(options, kind.dtype, t, part).for_backward;
    planned += sign * plan::stage_activation_bytes(config, options.shape, part);
  }
  EXPECT_EQ(kept, planned);
  EXPECT_EQ(planned, 32 * 2 * 64 * 4 / (sp ? t : 1));
}

/// Whole keys and values, or heads, are there while attention computes and no longer.
TEST(SharedSequences, KeepTheBytesOfThePlanWhichAreTheirShare) {
  counter().install();
  const plan::StageSpec part{.num_layers = 3, .embedding = false, .output = false};
  using plan::SequenceExchange;
  for (const Kind& kind : {kKinds[0], kKinds[1], kKinds[2]})
    for (const std::size_t mode : {0, 2, 5})
      for (const int cp : {2, 4})
        for (const auto exchange : {SequenceExchange::AllGather, SequenceExchange::AllToAll, SequenceExchange::Ring}) {
          if (kind.llama && exchange == SequenceExchange::AllToAll) continue;  // all heads share one key
          SCOPED_TRACE(concat(kind.name, ", ", kModes[mode].name, ", cp ", cp, ", ", name_of(exchange)));
          auto config = config_of(kind, kModes[mode], 1, false);
          TransformerOptions options = options_of(kind, kModes[mode], false);
          options.sequence.exchange = exchange;
          const auto whole = static_cast<double>(plan::stage_activation_bytes(config, options.shape, part));
          config.parallel.cp = cp;
          const auto planned = static_cast<double>(plan::stage_activation_bytes(config, options.shape, part));
          EXPECT_DOUBLE_EQ(planned * cp, whole);
          const auto kept = static_cast<double>(measure(options, kind.dtype, 1, part, false, cp).for_backward);
          EXPECT_NEAR(kept / planned, 1, 0.05) << kept << " bytes for " << planned;
        }
  counter().remove();
}

/// Whole experts on two tensor-parallel ranks, and halves on four: a rank has as many numbers of them as it would have
/// of experts that are split as other weights. Without sequence parallelism they get the rows of the ranks together.
TEST(ActivationBytesOfSlices, OfExpertsAreThoseOfThePlan) {
  counter().install();
  const plan::StageSpec part{.num_layers = 3, .embedding = false, .output = false};
  const Kind& kind = kKinds[2];
  for (const std::size_t mode : {0, 3, 5})
    for (const auto& [t, slices, sp] : {std::tuple{2, 1, false}, {2, 1, true}, {4, 2, false}, {4, 2, true}}) {
      SCOPED_TRACE(concat(kModes[mode].name, ", tp ", t, ", etp ", slices, ", sp ", sp));
      TransformerOptions options = options_of(kind, kModes[mode], sp);
      options.shape.experts = plan::Experts{
          .expert = {.width = 96, .gated = true}, .count = 4, .top_k = 2, .shared_width = mode == 0 ? 64 : 0};
      options.expert_slices = slices;
      const auto config = config_of(kind, kModes[mode], t, sp);
      const Kept kept = measure(options, kind.dtype, t, part);
      const auto planned = static_cast<double>(plan::stage_activation_bytes(config, options.shape, part));
      EXPECT_NEAR(static_cast<double>(kept.for_backward) / planned, 1, 0.05) << kept.for_backward << ", " << planned;
      const double weights = planned_weight_bytes(config, options.shape, part, false);
      EXPECT_NEAR(static_cast<double>(kept.for_weights) / weights, 1, 0.05) << kept.for_weights << ", " << weights;
    }
  counter().remove();
}

/// Layers of one model that differ in everything that a description can say.
TEST_P(ActivationBytes, OfLayersAtRandomAreThoseOfThePlan) {
  const auto [t, sp] = GetParam();
  const plan::StageSpec part{.num_layers = 3, .embedding = false, .output = false};
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(concat("seed ", seed));
    const Mode& mode = kModes[seed % std::size(kModes)];
    const Kind kind{"gpt", false, seed % 3 == 0 ? at::kBFloat16 : at::kFloat};
    TransformerOptions options = options_of(kind, mode, sp);
    options.shape.layers =
        megatron::testing::random_layers(seed, options.shape, {.head_sizes = {8, 16, 24}, .widths = {64, 128, 208}});
    for (plan::LayerSpec& layer : options.shape.layers)  // the plan is of what is kept where nothing is dropped
      if (auto* const experts = std::get_if<plan::Experts>(&layer.branches.back().inner)) experts->capacity_factor = 0;
    const auto routes = [](const plan::LayerSpec& layer) { return layer.experts() != nullptr; };
    if (mode.partial && std::ranges::any_of(options.shape.layers, routes)) continue;  // check_expert_layout refuses it
    const auto config = config_of(kind, mode, t, sp);
    const auto kept = measure(options, kind.dtype, t, part, mode.partial);
    const auto planned = static_cast<double>(plan::stage_activation_bytes(config, options.shape, part, mode.partial));
    EXPECT_NEAR(static_cast<double>(kept.for_backward) / planned, 1, 0.05)
        << mode.name << ": " << kept.for_backward << " bytes for " << planned;
    const double weights = planned_weight_bytes(config, options.shape, part, mode.partial);
    EXPECT_NEAR(static_cast<double>(kept.for_weights) / weights, 1, 0.05)
        << mode.name << ", weights: " << kept.for_weights << " bytes for " << weights;
  }
}

/// Bytes that a rank of the stage with the output keeps after its loss.
std::int64_t kept_with_output(const TransformerOptions& options, at::ScalarType dtype, int t, bool partial) {
  const plan::StageSpec part{.first_layer = 2, .num_layers = 1, .embedding = false};
  std::int64_t kept = 0;
  comm::run_ranks(t, [&](const comm::Group& tp) {
    const auto store = make_store(options.shape, t, tp.rank(), {}, dtype, 1, at::kCPU, {part});
    const TransformerStage gpt(options, part, store, tp);
    auto batch = random_batch(10, 2, 32, at::kFloat);
    batch.partial_recomputation = partial;
    for (int pass = 0; pass < 2; ++pass) {  // the first packs weights where products want that
      tp.barrier();
      const auto before = counter().live();
      tp.barrier();
      parallel::GraphLeaf leaf(at::ones({32 / (options.sequence_parallel ? t : 1), 2, 64}, dtype));
      at::Tensor loss = gpt.loss(leaf.take(), batch, true).sum;
      tp.barrier();
      if (tp.rank() == 0) kept = (counter().live() - before) / t;
      tp.barrier();
      parallel::GraphRoot(loss).backward(at::ones({}, at::kDouble));
      loss = at::Tensor();
      leaf.take_gradient();
      tp.barrier();
    }
  });
  return kept;
}

TEST_P(ActivationBytes, OfDepthsOfPredictionAreThoseOfThePlan) {
  const auto [t, sp] = GetParam();
  const plan::StageSpec part{.first_layer = 2, .num_layers = 1, .embedding = false};
  for (const Kind& kind : {kKinds[1], kKinds[2]})
    for (const Mode& mode : kModes) {
      if (mode.distribute && sp) continue;
      SCOPED_TRACE(std::string(kind.name) + ", " + mode.name);
      TransformerOptions options = options_of(kind, mode, sp);
      const auto config = config_of(kind, mode, t, sp);
      double kept = 0, planned = 0;
      for (const std::int64_t depths : {0, 3}) {  // what three keep more than none
        options.shape.mtp_depths = depths;
        const double sign = depths > 0 ? 1 : -1;
        kept += sign * static_cast<double>(kept_with_output(options, kind.dtype, t, mode.partial));
        planned += sign * static_cast<double>(plan::stage_activation_bytes(config, options.shape, part, mode.partial));
      }
      EXPECT_NEAR(kept / planned, 1, 0.05) << kept << " bytes for " << planned;
    }
}

/// Korthikanti et al. 2022, table 2, count 34 s b h of a layer without its scores. What is measured leaves out of these
/// the norms' outputs (2 + 2, computed again from their inputs) and two dropout masks (1 + 1, drawn again), all on each
/// rank unless the sequence is split; and of the scores it keeps one number a row.
TEST_P(ActivationBytes, AreThoseOfThePapersFormulaWithoutWhatIsComputedAgain) {
  const auto [t, sp] = GetParam();
  const Kind kind{"gpt in bf16", false, at::kBFloat16};
  const plan::StageSpec part{.num_layers = 3, .embedding = false, .output = false};
  const auto layer = [&, t = t, sp = sp](const Mode& mode) {
    return static_cast<double>(measure(kind, mode, t, sp, part).for_backward) / 3;
  };
  const auto paper = [&, t = t, sp = sp](plan::Recomputation what) {
    return plan::paper_activation_bytes(32, 2, 64, 4, t, sp, what);
  };
  const double sbh = 32 * 2 * 64, again = 6 * sbh / (sp ? t : 1), gelu = 8 * sbh / t;
  const double whole = layer({.name = "GELU kept", .gelu = false}), usual = layer({.name = "none"});
  EXPECT_NEAR(whole, paper(plan::Recomputation::Selective) - again, 0.05 * whole) << "flash attention keeps no scores";
  EXPECT_NEAR(usual, paper(plan::Recomputation::Selective) - again - gelu, 0.05 * whole);
  EXPECT_LT(usual, paper(plan::Recomputation::None) / 2);
  EXPECT_NEAR(layer({.name = "uniform", .recompute = "full", .num_layers = 1}),
              paper(plan::Recomputation::Full) / (sp ? t : 1), 0.1 * sbh);
}

}  // namespace
}  // namespace megatron::model
