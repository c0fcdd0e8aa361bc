#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <sstream>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/comm/processes/gloo_backend.h"
#include "megatron/comm/threads/local_backend.h"
#include "megatron/config/options.h"
#include "megatron/kernels/runtime.h"
#include "megatron/plan/rules.h"
#include "megatron/plan/steps/batch_plan.h"
#include "megatron/train/data/batches.h"
#include "megatron/train/engine.h"
#include "megatron/train/tuning/preference.h"
#include "tests/parity/encoder_decoder_layouts.h"
#include "tests/parity/expert_layouts.h"
#include "tests/parity/family_layouts.h"
#include "tests/parity/fp8_layouts.h"
#include "tests/parity/fully_sharded_layouts.h"
#include "tests/parity/latent_layouts.h"
#include "tests/parity/layouts.h"
#include "tests/parity/multi_token_layouts.h"
#include "tests/parity/option_layouts.h"
#include "tests/parity/sequence_layouts.h"
#include "tests/parity/stage_layouts.h"
#include "tests/parity/tuning_layouts.h"

// The same seed gives the same training whatever the layout of ranks: same weights, same samples, same dropout masks.
// What is left are sums in another order. bench/parity.sh shows it at full length on real text.
namespace megatron::train {
namespace {

/// Steps of the runs in double and in single precision: few, or MEGATRON_PARITY_STEPS. In half they have twice as many.
/// Buffers that ranks share are in turn again in the third; all layouts of a family have as many, of one reference.
std::int64_t number_of_steps(const Layout& layout) {
  const char* const named = std::getenv("MEGATRON_PARITY_STEPS");
  const bool in_turns = layout.sharded || layout.pooled || layout.full || !layout.family.empty();
  return named != nullptr ? std::stoll(named) : in_turns ? 3 : 2;
}

plan::ResolvedRun run_of(const Layout& layout, const char* dtype, std::int64_t steps) {
  config::RunConfig config;
  config.model.num_layers = 4;
  config.model.hidden_size = 32;
  config.model.num_attention_heads = 4;
  config.model.vocab_size = 61;  // no multiple of anything: some rows are padding
  config.model.make_vocab_size_divisible_by = 8;
  config.model.hidden_dropout = config.model.attention_dropout = 0.1;
  if (layout.llama > 0) {
    config.model.num_query_groups = layout.llama;
    config.model.normalization = "RMSNorm";
    config.model.activation = "silu";
    config.model.gated_linear_unit = true;
    config.model.add_bias_linear = false;
    config.model.position_embedding_type = "rope";
    config.model.qk_layernorm = layout.llama == 1;
    config.model.sliding_window = layout.llama == 1 ? 5 : 0;
  }
  if (layout.latents > 0) {
    config.model.multi_latent_attention = config.model.qk_layernorm = config.model.rotary_interleaved = true;
    config.model.num_query_groups = 0;
    config.model.q_lora_rank = layout.latents == 2 ? 10 : 0;
    config.model.kv_lora_rank = 12;
    config.model.qk_head_dim = 6;
    config.model.qk_pos_emb_head_dim = 4;
    config.model.v_head_dim = layout.latents == 2 ? 14 : 8;
  }
  if (layout.experts > 0) {
    config.model.num_experts = 4;
    config.model.moe_ffn_hidden_size = 24;
    config.model.moe_aux_loss_coeff = 0.1;
    config.parallel.ep = layout.ep;
  }
  if (layout.experts == 2) {
    config.model.moe_layer_freq = 2;
    config.model.moe_shared_expert_intermediate_size = 16;
    config.model.moe_shared_expert_gate = true;
    config.model.moe_router_score_function = "sigmoid";
    config.model.moe_router_topk_scaling_factor = 1.5;
    config.model.moe_z_loss_coeff = 0.01;
  }
  if (layout.experts == 3) {
    config.model.num_experts = 8;
    config.model.moe_router_score_function = "sigmoid";
    config.model.moe_router_num_groups = 4;
    config.model.moe_router_group_topk = 2;
    config.model.moe_router_enable_expert_bias = true;
    config.model.moe_router_bias_update_rate = 0.05;
    config.model.moe_expert_capacity_factor = 1.25;
  }
  if (layout.experts == 4) {
    config.model.add_bias_linear = true;
    config.model.activation = "quick_gelu";
    config.model.activation_func_clamp_value = 0.01;  // which holds some
    config.model.glu_linear_offset = 1;
    config.model.softmax_type = "learnable";
    config.model.sliding_window = 5;
    config.model.window_attn_skip_freq = 2;
    config.model.moe_input_jitter_eps = 0.2;
  }
  if (layout.bert) config.model.architecture = "bert";
  if (layout.t5) {
    config.model.architecture = "t5";
    config.model.num_layers = 2;
    config.model.kv_channels = 6;
    config.model.normalization = "RMSNorm";
    config.model.activation = layout.untied ? "gelu_tanh" : "relu";
    config.model.gated_linear_unit = layout.untied;
    config.model.add_bias_linear = false;
    config.model.position_embedding_type = "relative";
    config.model.relative_attention_num_buckets = 8;
    config.model.relative_attention_max_distance = 10;
    config.data.decoder_seq_length = 8;
  }
  if (layout.layers > 0) config.model.num_layers = layout.layers;
  config.model.apply_residual_connection_post_layernorm = layout.original;
  config.data.seq_length = 12;
  config.model.max_position_embeddings = 16;
  config.parallel.tp = layout.tp;
  config.parallel.cp = layout.cp;
  if (!layout.exchange.empty()) config.parallel.cp_comm_type = layout.exchange;
  config.parallel.pp = layout.pp;
  config.parallel.vpp = layout.vpp;
  config.parallel.sp = layout.sp;
  config.parallel.pp_schedule = layout.schedule;
  config.parallel.pp_communication = layout.communication;
  config.parallel.variable_seq_lengths = layout.shapes_vary;
  config.parallel.scatter_gather = layout.scatter_gather;
  config.parallel.pp_layout = layout.stages;
  config.parallel.pipeline_split_rank = layout.split;
  config.parallel.microbatch_group_size = layout.microbatch_group;
  config.model.untie_embeddings_and_output_weights = layout.untied;
  config.parallel.world_size = layout.ranks();
  config.optimizer.bucket_size = 3000;
  config.optimizer.use_distributed_optimizer = layout.sharded;
  if (layout.pooled) config.optimizer.data_parallel_sharding_strategy = "optim_grads";
  if (layout.full) config.optimizer.data_parallel_sharding_strategy = "optim_grads_params";
  config.optimizer.clip_grad = layout.t5 ? 0.1 : 0.5;  // below the norms of this model: clipping is always on
  if (layout.muon) config.optimizer.name = "muon";
  config.schedule.lr = 1e-3;
  config.train.micro_batch_size = layout.micro_batch;
  config.train.global_batch_size = layout.global_batch;
  config.train.train_iters = steps;
  config.train.recompute = layout.recompute;
  config.train.dtype = dtype;
  config.train.loss_chunk_tokens = 10;
  std::vector<std::string> words;
  std::istringstream with(layout.with);
  for (std::string word; with >> word;) words.push_back("--" + word);
  config::parse_words(config::fields_of(config), words, "");
  config.log.params_norm = config.log.num_zeros_in_grad = true;
  return plan::resolve(config);
}

// Losses, norms of gradient and weights, and zeros in the gradient of the run's steps, the same on every rank.
struct Course {
  std::vector<double> losses, norms, weights;
  std::vector<double> zeros = {};
  /// Of experts: of each layer those of its experts, then what it dropped.
  std::vector<std::vector<double>> loads = {};
  /// Losses of routers, of each layer balance and z, then of depths of multi-token prediction, then figures of pairs.
  std::vector<std::vector<double>> auxiliary = {};
};

/// Step number `i` on synthetic_batch()es, each of them changed by `change`, which is given its samples.
template <class Change>
StepResult changed_step(Engine& engine, const plan::ResolvedRun& run, std::int64_t i, const Change& change) {
  const auto& train = run.config.train;
  const std::int64_t first = i * train.global_batch_size;
  const auto samples = plan::batch_plan(first, train.global_batch_size, train.micro_batch_size,
                                        run.grid.sample_shares(), engine.context.samples().rank())
                           .microbatches;
  const auto batch_of = [&](std::size_t m) {
    auto batch = synthetic_batch(samples[m], run.config.data.seq_length, run.shape.vocab, train.seed, at::kCPU);
    change(batch, samples[m]);
    return batch;
  };
  return engine.step(static_cast<int>(samples.size()), batch_of, run.rates_at(first));
}

/// Step number `i`, of samples that are packed with two documents each, whose cut depends on the sample. A token of
/// each does not count.
StepResult documents_step(Engine& engine, const plan::ResolvedRun& run, std::int64_t i) {
  const std::int64_t length = run.config.data.seq_length;
  const auto changed = [&](model::Batch& batch, const std::vector<std::int64_t>& samples) {
    const auto rows = std::ssize(samples);
    batch.first_key_bs = at::zeros({rows, length}, at::kInt);
    batch.position_ids_bs = at::arange(length, at::kLong).repeat({rows, 1});
    batch.loss_mask_bs = at::ones({rows, length}, loss_type(run.config));
    for (std::int64_t b = 0; b < rows; ++b) {
      const std::int64_t cut = 1 + samples[static_cast<std::size_t>(b)] * 5 % (length - 1), left = length - cut;
      batch.first_key_bs[b].narrow(0, cut, left).fill_(static_cast<std::int32_t>(cut));
      batch.position_ids_bs[b].narrow(0, cut, left).sub_(cut);
      batch.loss_mask_bs[b].narrow(0, cut - 1, 1).zero_();
    }
  };
  return changed_step(engine, run, i, changed);
}

/// Step number `i`, of pairs of answers of some tokens behind a prompt of others, and what their reference is.
StepResult preference_step_of(Engine& engine, const plan::ResolvedRun& run, std::int64_t i) {
  const std::int64_t length = run.config.data.seq_length;
  const auto changed = [&](model::Batch& batch, const std::vector<std::int64_t>& samples) {
    const auto rows = std::ssize(samples);
    batch.loss_mask_bs = at::zeros({rows, length}, loss_type(run.config));
    batch.reference_b = at::empty({rows}, at::kDouble);
    for (std::int64_t b = 0; b < rows; ++b) {
      const std::int64_t id = samples[static_cast<std::size_t>(b)], begin = 1 + id / 2 * 3 % (length / 2);
      const std::int64_t tokens = 1 + id * 5 % (length / 2);
      batch.loss_mask_bs[b].narrow(0, begin, tokens).fill_(1);
      batch.reference_b[b] = -4.0 * static_cast<double>(tokens) - 0.3 * static_cast<double>(id % 3);
    }
  };
  return changed_step(engine, run, i, changed);
}

std::vector<double> loads_of(const ExpertFigures& figures) {
  std::vector<double> loads;
  for (std::size_t l = 0; l < figures.layers(); ++l) {
    const auto own = figures.loads(l);
    loads.insert(loads.end(), own.begin(), own.end());
    loads.push_back(figures.dropped_share(l));
  }
  return loads;
}

std::vector<double> auxiliary_of(const StepResult& result) {
  const ExpertFigures& figures = result.experts;
  std::vector<double> losses;
  for (std::size_t l = 0; l < figures.layers(); ++l)
    for (const double loss : {figures.balance(l), figures.z(l)}) losses.push_back(loss);
  losses.insert(losses.end(), result.depth_losses.begin(), result.depth_losses.end());
  for (const LossFigure& figure : result.figures) losses.push_back(figure.value);
  return losses;
}

Course course_of(const Layout& layout, const char* dtype, std::int64_t steps) {
  const plan::ResolvedRun run = run_of(layout, dtype, steps);
  const auto& train = run.config.train;
  Course course;
  const auto rank = [&](const comm::Group& world) {
    kernels::configure_thread(1);  // the model is too small to share
    Engine engine(run, world, at::kCPU);
    if (layout.preferences) engine.pipeline.use(preference_step(run.config.dpo));
    for (std::int64_t i = 0; i < train.train_iters; ++i) {
      const auto result = layout.documents ? documents_step(engine, run, i)
                          : layout.preferences
                              ? preference_step_of(engine, run, i)
                              : synthetic_step(engine, run, i, run.rates_at(i * train.global_batch_size));
      EXPECT_FALSE(result.skipped);
      EXPECT_GT(result.grad_norm, run.config.optimizer.clip_grad) << "clipping was to be on";
      if (world.rank() != 0) continue;
      course.losses.push_back(result.loss);
      course.norms.push_back(result.grad_norm);
      course.weights.push_back(result.params_norm.value());
      course.zeros.push_back(result.num_zeros.value());
      course.loads.push_back(loads_of(result.experts));
      course.auxiliary.push_back(auxiliary_of(result));
    }
  };
  if (layout.gloo)
    comm::run_gloo_ranks(layout.ranks(), rank, {});
  else
    comm::run_ranks(layout.ranks(), rank);
  return course;
}

/// The options of Layout::with that one rank has too.
std::string without_layout(const std::string& with) {
  std::string left;
  std::istringstream words(with);
  for (std::string word; words >> word;)
    if (!word.starts_with("train.") && !word.starts_with("parallel.")) left += (left.empty() ? "" : " ") + word;
  return left;
}

/// course_of() of one rank that computes the global batch at once, which many layouts are compared with: once a
/// process. Where tensors have scales of their own, it has the layout's microbatches.
const Course& course_of_one(const Layout& layout, const char* dtype, std::int64_t steps) {
  const bool own_scales = layout.with.find("tensorwise") != std::string::npos;
  const Layout one{.micro_batch = own_scales ? layout.micro_batch : layout.global_batch,
                   .layers = layout.layers,
                   .untied = layout.untied,
                   .global_batch = layout.global_batch,
                   .llama = layout.llama,
                   .bert = layout.bert,
                   .original = layout.original,
                   .t5 = layout.t5,
                   .experts = layout.experts,
                   .muon = layout.muon,
                   .with = without_layout(layout.with),
                   .latents = layout.latents,
                   .documents = layout.documents,
                   .preferences = layout.preferences,
                   .family = layout.family};
  static std::map<std::tuple<std::string, std::string, std::int64_t, std::int64_t>, Course> known;
  const auto [found, is_new] = known.try_emplace({name_of(one), dtype, one.global_batch, steps});
  if (is_new) found->second = course_of(one, dtype, steps);
  return found->second;
}

class Parity : public ::testing::TestWithParam<Layout> {
 protected:
  // Relative differences to one rank that computes the global batch at once. `set`: the instruction set of the layout.
  static Course differences(const char* dtype, std::int64_t steps = number_of_steps(GetParam()),
                            const char* set = "auto") {
    const Layout& layout = GetParam();
    const Course want = course_of_one(layout, dtype, steps);
    kernels::force_instruction_set(set);
    const Course got = course_of(layout, dtype, steps);
    kernels::force_instruction_set("auto");
    const auto relative = [](const std::vector<double>& a, const std::vector<double>& b) {
      EXPECT_EQ(a.size(), b.size());
      std::vector<double> result;
      for (std::size_t i = 0; i < b.size(); ++i) result.push_back(std::abs(a.at(i) - b[i]) / b[i]);
      return result;
    };
    // With GPT-2's layers come key biases, which have no gradient but for rounding: each may be counted, or not. Sums
    // in another order may round to zero, or not, in the fewer digits of other data types; scores that do may send a
    // token to another expert, and one that no token chose has no gradient.
    const bool adapted = layout.with.find("lora") != std::string::npos;  // which train no biases
    const bool none = !layout.family.empty() && layout.with.find("add_bias_linear=false") != std::string::npos;
    const bool key_biases = layout.llama == 0 && !layout.t5 && !adapted && !none;
    const bool positions = key_biases && layout.with.find("rope") == std::string::npos;
    const bool exact = std::string_view(dtype) == "fp64";
    const int slack = key_biases ? 4 * 32 : exact ? 0 : 16;
    for (std::size_t i = 0; i < want.zeros.size(); ++i) {
      if (exact || layout.experts == 0) {
        EXPECT_NEAR(got.zeros.at(i), want.zeros[i], slack) << "zeros in the gradient of step " << i + 1;
      }
      EXPECT_GE(want.zeros[i], positions ? 4 * 32 : 0) << "positions that no sample has";
    }
    if (exact) {
      EXPECT_EQ(got.loads, want.loads) << "tokens that chose each expert";
      EXPECT_EQ(want.loads.front().empty(), layout.experts == 0);
      for (std::size_t i = 0; i < want.auxiliary.size(); ++i) {
        EXPECT_EQ(got.auxiliary.at(i).size(), want.auxiliary[i].size());
        for (std::size_t j = 0; j < want.auxiliary[i].size(); ++j)
          EXPECT_NEAR(got.auxiliary.at(i).at(j), want.auxiliary[i][j], 1e-10 * std::abs(want.auxiliary[i][j]))
              << "auxiliary losses of step " << i + 1;
      }
    }
    return {relative(got.losses, want.losses), relative(got.norms, want.norms), relative(got.weights, want.weights)};
  }
};

TEST_P(Parity, IsThatOfOneRankAtEveryStepInDoublePrecision) {
  const Course difference = differences("fp64");
  const auto record = [](const char* figure, const std::vector<double>& all) {  // for --gtest_output=xml
    RecordProperty(figure, concat(*std::ranges::max_element(all)));
  };
  record("loss", difference.losses);
  record("gradient_norm", difference.norms);
  record("norm_of_weights", difference.weights);
  for (std::size_t i = 0; i < difference.losses.size(); ++i) {
    EXPECT_LE(difference.losses[i], 1e-10) << "loss of step " << i + 1;
    EXPECT_LE(difference.norms[i], 1e-10) << "gradient norm of step " << i + 1;
    EXPECT_LE(difference.weights[i], 1e-10) << "norm of the weights after step " << i + 1;
  }
}

class SinglePrecisionParity : public Parity {};

// A loss of float32 is a mean of losses that are off by some units in the last place each, 2^-24 of it; updates carry
// what they are off by from step to step. A gradient is a sum over the batch's tokens and a layer's features, hundreds
// of terms that each layout adds in another order: off by the square root of as many units.
TEST_P(SinglePrecisionParity, DiffersByRoundingAloneAtEveryStep) {
  constexpr double kUnit = 0x1p-24;
  const Course difference = differences("fp32");
  for (std::size_t i = 0; i < difference.losses.size(); ++i) {
    const double steps = static_cast<double>(i) + 1;
    EXPECT_LE(difference.losses[i], kUnit * steps) << "loss of step " << i + 1;
    EXPECT_LE(difference.norms[i], 32 * kUnit * steps) << "gradient norm of step " << i + 1;
  }
}

class HalfPrecisionParity : public Parity {};

TEST_P(HalfPrecisionParity, StaysWithinTwoThousandths) {
  const Course difference = differences("bf16", 2 * number_of_steps(GetParam()));
  for (std::size_t i = 0; i < difference.losses.size(); ++i)
    EXPECT_LE(difference.losses[i], 2e-3) << "loss of step " << i + 1;
}

class EmulatedParity : public Parity {};

// The kernels of a GPU by their host drivers, in layouts, against the CPU's own on one rank.
TEST_P(EmulatedParity, OfTheKernelsOfAGpuIsThatOfTheCpu) {
  const Course difference = differences("fp64", 2, kernels::kCudaEmulated);
  for (std::size_t i = 0; i < difference.losses.size(); ++i) {
    EXPECT_LE(difference.losses[i], 1e-10) << "loss of step " << i + 1;
    EXPECT_LE(difference.norms[i], 1e-10) << "gradient norm of step " << i + 1;
    EXPECT_LE(difference.weights[i], 1e-10) << "norm of the weights after step " << i + 1;
  }
}

std::vector<Layout> emulated_layouts() {
  return {{.tp = 2, .dp = 2, .micro_batch = 2, .sharded = true},
          {.tp = 2, .pp = 2, .micro_batch = 2, .sp = true, .llama = 2},
          {.dp = 2, .micro_batch = 2, .bert = true},
          {.dp = 2,
           .micro_batch = 2,
           .bert = true,
           .with = "model.sliding_window=3 model.window_attn_skip_freq=2 model.norm_bias=false"},
          {.cp = 3,
           .micro_batch = 2,
           .bert = true,
           .with = "model.sliding_window=3 model.window_attn_skip_freq=2 model.norm_bias=false",
           .exchange = "p2p"},
          {.tp = 2, .micro_batch = 4, .t5 = true},
          {.cp = 2, .micro_batch = 2, .llama = 2, .exchange = "p2p", .documents = true}};
}

std::vector<Layout> every_nth(std::size_t n, const std::vector<Layout>& all) {
  std::vector<Layout> some;
  for (std::size_t i = 0; i < all.size(); i += n) some.push_back(all[i]);
  return some;
}

std::vector<Layout> every_fourth(const std::vector<Layout>& all) { return every_nth(4, all); }

/// Routers choose others where a score is off in bf16's few digits.
std::vector<Layout> without_experts(std::vector<Layout> layouts) {
  std::erase_if(layouts, [](const Layout& layout) { return layout.experts > 0; });
  return layouts;
}

INSTANTIATE_TEST_SUITE_P(Layouts, Parity, ::testing::ValuesIn(layouts()),
                         [](const auto& test) { return name_of(test.param); });
INSTANTIATE_TEST_SUITE_P(ShardedLayouts, Parity, ::testing::ValuesIn(sharded_layouts()),
                         [](const auto& test) { return name_of(test.param); });
INSTANTIATE_TEST_SUITE_P(BertLayouts, Parity, ::testing::ValuesIn(bert_layouts()),
                         [](const auto& test) { return name_of(test.param); });
INSTANTIATE_TEST_SUITE_P(T5Layouts, Parity, ::testing::ValuesIn(t5_layouts()),
                         [](const auto& test) { return name_of(test.param); });
INSTANTIATE_TEST_SUITE_P(ExpertLayouts, Parity, ::testing::ValuesIn(expert_layouts()),
                         [](const auto& test) { return name_of(test.param); });
INSTANTIATE_TEST_SUITE_P(ExpertSliceLayouts, Parity, ::testing::ValuesIn(expert_slice_layouts()),
                         [](const auto& test) { return name_of(test.param); });
INSTANTIATE_TEST_SUITE_P(SequenceLayouts, Parity, ::testing::ValuesIn(sequence_layouts()),
                         [](const auto& test) { return name_of(test.param); });
INSTANTIATE_TEST_SUITE_P(EncoderSequenceLayouts, Parity, ::testing::ValuesIn(encoder_sequence_layouts()),
                         [](const auto& test) { return name_of(test.param); });
INSTANTIATE_TEST_SUITE_P(EncoderSequenceLayouts, HalfPrecisionParity,
                         ::testing::ValuesIn(every_nth(9, encoder_sequence_layouts())),
                         [](const auto& test) { return name_of(test.param); });
INSTANTIATE_TEST_SUITE_P(T5SequenceLayouts, Parity, ::testing::ValuesIn(t5_sequence_layouts()),
                         [](const auto& test) { return name_of(test.param); });
INSTANTIATE_TEST_SUITE_P(StageLayouts, Parity, ::testing::ValuesIn(stage_layouts()),
                         [](const auto& test) { return name_of(test.param); });
INSTANTIATE_TEST_SUITE_P(LatentLayouts, Parity, ::testing::ValuesIn(latent_layouts()),
                         [](const auto& test) { return name_of(test.param); });
INSTANTIATE_TEST_SUITE_P(PooledLayouts, Parity, ::testing::ValuesIn(pooled_layouts()),
                         [](const auto& test) { return name_of(test.param); });
INSTANTIATE_TEST_SUITE_P(FullyShardedLayouts, Parity, ::testing::ValuesIn(fully_sharded_layouts()),
                         [](const auto& test) { return name_of(test.param); });
INSTANTIATE_TEST_SUITE_P(FullyShardedLayouts, HalfPrecisionParity,
                         ::testing::ValuesIn(every_fourth(without_experts(fully_sharded_layouts()))),
                         [](const auto& test) { return name_of(test.param); });
INSTANTIATE_TEST_SUITE_P(MultiTokenLayouts, Parity, ::testing::ValuesIn(multi_token_layouts()),
                         [](const auto& test) { return name_of(test.param); });
INSTANTIATE_TEST_SUITE_P(MultiTokenLayouts, HalfPrecisionParity,
                         ::testing::ValuesIn(every_fourth(without_experts(multi_token_layouts()))),
                         [](const auto& test) { return name_of(test.param); });
INSTANTIATE_TEST_SUITE_P(MuonLayouts, Parity, ::testing::ValuesIn(muon_layouts()),
                         [](const auto& test) { return name_of(test.param); });
INSTANTIATE_TEST_SUITE_P(OptionLayouts, Parity, ::testing::ValuesIn(option_layouts()),
                         [](const auto& test) { return name_of(test.param); });
INSTANTIATE_TEST_SUITE_P(FamilyLayouts, Parity, ::testing::ValuesIn(family_layouts()),
                         [](const auto& test) { return name_of(test.param); });
INSTANTIATE_TEST_SUITE_P(EncoderLayouts, Parity, ::testing::ValuesIn(encoder_layouts()),
                         [](const auto& test) { return name_of(test.param); });
INSTANTIATE_TEST_SUITE_P(LatentLayouts, HalfPrecisionParity,
                         ::testing::ValuesIn(every_nth(8, without_experts(latent_layouts()))),
                         [](const auto& test) { return name_of(test.param); });
INSTANTIATE_TEST_SUITE_P(EncoderLayouts, HalfPrecisionParity, ::testing::ValuesIn(every_nth(5, encoder_layouts())),
                         [](const auto& test) { return name_of(test.param); });
INSTANTIATE_TEST_SUITE_P(SequenceLayouts, HalfPrecisionParity, ::testing::ValuesIn(every_fourth(sequence_layouts())),
                         [](const auto& test) { return name_of(test.param); });
INSTANTIATE_TEST_SUITE_P(LoraLayouts, Parity, ::testing::ValuesIn(lora_layouts()),
                         [](const auto& test) { return name_of(test.param); });
INSTANTIATE_TEST_SUITE_P(LoraLayouts, HalfPrecisionParity,
                         ::testing::ValuesIn(every_fourth(without_experts(lora_layouts()))),
                         [](const auto& test) { return name_of(test.param); });
INSTANTIATE_TEST_SUITE_P(PreferenceLayouts, Parity, ::testing::ValuesIn(preference_layouts()),
                         [](const auto& test) { return name_of(test.param); });
INSTANTIATE_TEST_SUITE_P(PooledLayouts, HalfPrecisionParity, ::testing::ValuesIn(every_fourth(pooled_layouts())),
                         [](const auto& test) { return name_of(test.param); });
INSTANTIATE_TEST_SUITE_P(Fp8Layouts, Parity, ::testing::ValuesIn(fp8_layouts()),
                         [](const auto& test) { return name_of(test.param); });
INSTANTIATE_TEST_SUITE_P(Fp8Layouts, EmulatedParity, ::testing::ValuesIn(fp8_layouts()),
                         [](const auto& test) { return name_of(test.param); });
INSTANTIATE_TEST_SUITE_P(SomeLayouts, EmulatedParity, ::testing::ValuesIn(emulated_layouts()),
                         [](const auto& test) { return name_of(test.param); });
INSTANTIATE_TEST_SUITE_P(WideStreamLayouts, HalfPrecisionParity, ::testing::ValuesIn(wide_stream_layouts()),
                         [](const auto& test) { return name_of(test.param); });
INSTANTIATE_TEST_SUITE_P(Layouts, HalfPrecisionParity, ::testing::ValuesIn(every_fourth(layouts())),
                         [](const auto& test) { return name_of(test.param); });
INSTANTIATE_TEST_SUITE_P(SequenceLayouts, SinglePrecisionParity, ::testing::ValuesIn(every_fourth(sequence_layouts())),
                         [](const auto& test) { return name_of(test.param); });
INSTANTIATE_TEST_SUITE_P(Layouts, SinglePrecisionParity, ::testing::ValuesIn(every_fourth(layouts())),
                         [](const auto& test) { return name_of(test.param); });

}  // namespace
}  // namespace megatron::train
