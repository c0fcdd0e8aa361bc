#include "megatron/plan/rules.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/base/text/printable.h"
#include "megatron/config/options.h"
#include "megatron/config/value.h"
#include "megatron/data/index/split.h"
#include "megatron/data/run_blends.h"
#include "megatron/plan/cost/counts.h"
#include "megatron/plan/cost/fit/teacher.h"
#include "megatron/plan/cost/memory.h"
#include "megatron/plan/cost/recomputation.h"
#include "megatron/plan/mend.h"
#include "megatron/plan/model_kind.h"
#include "megatron/plan/parameters/adapters.h"
#include "megatron/plan/parameters/parameter_groups.h"
#include "megatron/plan/pipeline_plan.h"
#include "megatron/plan/ranks/heads.h"
#include "megatron/plan/rule_list.h"
#include "megatron/plan/sample_rules.h"

namespace megatron::plan {
namespace {

const std::vector<std::string> kHeads = {"tokens", "classes", "options", "span"};  // in the order of Head

void check_parallel(const config::ParallelConfig& parallel, const Facts& facts, Rules& rules) {
  rules.choices("parallel", parallel);
  rules.range("parallel.world_size", parallel.world_size, 0, kMaxRanks);
  rules.range("parallel.tp", parallel.tp, 1, kMaxRanks);
  rules.range("parallel.cp", parallel.cp, 1, kMaxRanks);
  rules.range("parallel.dp", parallel.dp, 0, kMaxRanks);
  rules.range("parallel.pp", parallel.pp, 1, kMaxStages);
  rules.range("parallel.vpp", parallel.vpp, 1, kMaxStages);
  rules.range("parallel.pipeline_split_rank", parallel.pipeline_split_rank, 0, kMaxStages);
  rules.range<std::int64_t>("parallel.layers_per_virtual_stage", parallel.layers_per_virtual_stage, 0, kMaxLayers);
  rules.range<std::int64_t>("parallel.first_stage_layers", parallel.first_stage_layers, 0, kMaxLayers);
  rules.range<std::int64_t>("parallel.last_stage_layers", parallel.last_stage_layers, 0, kMaxLayers);
  rules.at_least("parallel.pp_memory_limit", parallel.pp_memory_limit, 0);
  rules.range("parallel.microbatch_group_size", parallel.microbatch_group_size, 0, kMaxGroup);
  rules.range("parallel.threads_per_rank", parallel.threads_per_rank, 0, 1 << 12);
  rules.range("parallel.timeout_s", parallel.timeout_s, 1e-3, 1e7);
  rules.require(parallel.backend != "nccl" || parallel.device == "cuda",
                "parallel.backend nccl needs parallel.device cuda.", parallel.device, "--parallel.backend gloo");
  const bool processes = parallel.launch == "processes" || facts.launched_world_size > 1;
  rules.require(parallel.backend != "local" || !processes, "parallel.backend local needs ranks that are threads.",
                facts.launched_world_size > 1 ? "ranks that a launcher started" : "parallel.launch processes",
                "--parallel.backend gloo");
}

bool is_split(const std::string& split) {
  try {
    data::split_shares(split);
    return true;
  } catch (const ConfigError&) {
    return false;  // said together with the other broken rules
  }
}

using Switches = std::vector<std::pair<const char*, bool>>;

/// Reports the rule where one of the switches is on, with those that are.
void refuse(Switches switches, const Switches& more, const std::string& rule, Rules& rules) {
  switches.insert(switches.end(), more.begin(), more.end());
  std::string got, fix;
  for (const auto& [option, on] : switches) {
    if (!on) continue;
    got += concat(got.empty() ? "" : ", ", option);
    fix += concat(fix.empty() ? "--" : " --", option, " false");
  }
  rules.require(got.empty(), rule, got, fix);
}

void check_data(const config::DataConfig& data, bool sentences, const Facts& facts, Rules& rules) {
  if (facts.needs_data) {
    rules.attempt([&] { data::read_blends(data); });
    rules.require(!data.tokenizer.empty() || data.mock_data,
                  "data.tokenizer must name the tokenizer that made the data.", "none", "--tokenizer FOLDER");
    // With mock data and no type, or NullTokenizer, a tokenizer of the vocabulary's size stands in (recipe/resolve.h).
    const bool stands_in = data.tokenizer_type.empty() || data.tokenizer_type == "NullTokenizer";
    rules.require(!data.mock_data || !data.tokenizer.empty() || stands_in,
                  "data.tokenizer_type is that of data.tokenizer, which must be named.", in_quotes(data.tokenizer_type),
                  "--tokenizer FOLDER, or leave --tokenizer-type out");
  }
  rules.require(is_split(data.split), "data.split must be one to three shares >= 0, not all 0.", "'" + data.split + "'",
                "--split 969,30,1");
  rules.range<std::int64_t>("data.seq_length", data.seq_length, 1, kMaxPositions);
  rules.range<std::int64_t>("data.decoder_seq_length", data.decoder_seq_length, 0, kMaxPositions);
  rules.range<std::int64_t>("data.vocab_extra_ids", data.vocab_extra_ids, 0, 100000);
  rules.range<std::int64_t>("data.prefetch", data.prefetch, 0, kMaxMicrobatchesAhead);
  rules.range("data.mask_prob", data.mask_prob, 0.0, 1.0);
  rules.range("data.short_seq_prob", data.short_seq_prob, 0.0, 1.0);
  const bool whole = data.packed || data.sft;
  const Switches kinds = {{"data.packed", data.packed}, {"data.sft", data.sft}, {"data.fim_data", data.fim_data}};
  const Switches resets = {{"data.reset_position_ids", data.reset_position_ids},
                           {"data.reset_attention_mask", data.reset_attention_mask},
                           {"data.eod_mask_loss", data.eod_mask_loss}};
  if (data.mock_data) {
    Switches files = {{"data.full_validation", data.full_validation},
                      {"data.multiple_validation_sets", data.multiple_validation_sets}};
    files.insert(files.end(), kinds.begin(), kinds.end());
    return refuse(files, resets, "data.mock_data makes samples of its own, of no files and documents.", rules);
  }
  if (sentences)
    refuse(kinds, resets,
           concat("model.architecture ", config::names_with(&config::ModelTraits::reads_sentences),
                  " read sentences (megatron data preprocess --split-sentences)."),
           rules);
  rules.require(!whole || !data.fim_data, "data.fim_data is for samples that are cut out of a stream of documents.",
                "data.packed or data.sft", "--data.fim_data false");
  if (whole && !sentences) refuse({}, resets, "data.packed and data.sft keep documents apart themselves.", rules);
}

void check_fim(const config::FimConfig& fim, Rules& rules) {
  rules.range("fim.rate", fim.rate, 0.0, 1.0);
  rules.range("fim.spm_rate", fim.spm_rate, 0.0, 1.0);
  rules.range("fim.fragment_rate", fim.fragment_rate, 0.0, 1.0);
}

void check_precision(const config::OptimizerConfig& optimizer, const std::string& dtype, Rules& rules) {
  rules.require(optimizer.grad_dtype == "fp32" || optimizer.grad_dtype == dtype,
                "optimizer.grad_dtype must be fp32 or train.dtype.", concat(optimizer.grad_dtype, " and ", dtype),
                "--optimizer.grad_dtype fp32 (the default)");
  rules.require(!optimizer.stochastic_rounding || dtype == "bf16" || dtype == "fp16" || optimizer.state_dtype == "bf16",
                "optimizer.stochastic_rounding needs something stored in 16 bits: train.dtype bf16 or fp16, or "
                "optimizer.state_dtype bf16.",
                concat("train.dtype ", dtype, ", optimizer.state_dtype ", optimizer.state_dtype),
                "--optimizer.stochastic_rounding false (the default)");
  rules.require(optimizer.loss_scale == 0 || dtype == "fp16",
                "optimizer.loss_scale needs train.dtype fp16: gradients of the others do not vanish.", dtype,
                "--optimizer.loss_scale 0 (the default)");
  const auto scale = [&](const char* option, double value, double low) {
    rules.option(option, std::isfinite(value) && value >= low && value <= 0x1p64,
                 concat("must be from ", low, " to 2^64."), concat(value));
  };
  scale("optimizer.loss_scale", optimizer.loss_scale, 0);
  scale("optimizer.min_loss_scale", optimizer.min_loss_scale, 0x1p-24);
  scale("optimizer.initial_loss_scale", optimizer.initial_loss_scale, 0x1p-24);
  rules.require(optimizer.initial_loss_scale >= optimizer.min_loss_scale,
                "optimizer.initial_loss_scale must be optimizer.min_loss_scale or above.",
                concat(optimizer.initial_loss_scale, " and ", optimizer.min_loss_scale),
                "--optimizer.min_loss_scale 1 (the default)");
  rules.range<std::int64_t>("optimizer.loss_scale_window", optimizer.loss_scale_window, 1, kMaxSteps);
  rules.range<std::int64_t>("optimizer.hysteresis", optimizer.hysteresis, 1, kMaxSteps);
}

void check_sharding(const config::OptimizerConfig& optimizer, Rules& rules) {
  const char* option = "optimizer.data_parallel_sharding_strategy";
  const std::string& strategy = optimizer.data_parallel_sharding_strategy;
  const bool sharded = optimizer.use_distributed_optimizer;
  rules.require(!strategy.starts_with("optim_grads") || sharded,
                concat(option, " ", strategy,
                       " needs optimizer.use_distributed_optimizer: a rank keeps the gradients of what it updates."),
                "optimizer.use_distributed_optimizer false", "--use-distributed-optimizer");
  rules.require(strategy != "no_shard" || !sharded,
                concat(option, " no_shard must go without optimizer.use_distributed_optimizer."),
                "optimizer.use_distributed_optimizer true", "--data-parallel-sharding-strategy optim (the default)");
}

void check_bounds(const config::OptimizerOption& option, double value, Rules& rules) {
  switch (option.bounds) {
    case config::Bounds::FromZeroToBelowOne:
      return rules.option(option.path, value >= 0 && value < 1, "must be from 0 to below 1.", concat(value));
    case config::Bounds::AboveZero:
      return rules.option(option.path, value > 0, "must be above 0.", concat(value));
    case config::Bounds::AtLeastOne:
      return rules.option(option.path, value >= 1, "must be at least 1.", concat(value));
  }
}

void check_optimizer(const config::OptimizerConfig& optimizer, Rules& rules) {
  rules.choices("optimizer", optimizer);
  for (const config::OptimizerOption& option : config::optimizer_options())
    check_bounds(option, option.value(optimizer), rules);
  rules.require(optimizer.muon_num_ns_steps <= 100, "optimizer.muon_num_ns_steps must be at most 100.",
                concat(optimizer.muon_num_ns_steps), "--optimizer.muon_num_ns_steps 5 (the default)");
  rules.attempt([&] { multipliers(optimizer, {}); });
  rules.option("optimizer.weight_decay", optimizer.weight_decay >= 0, "must be at least 0.",
               concat(optimizer.weight_decay));
  rules.option("optimizer.clip_grad", optimizer.clip_grad >= 0, "must be at least 0.", concat(optimizer.clip_grad));
  rules.option("optimizer.clip_norm", config::norm_order(optimizer.clip_norm).has_value(),
               "must be l2, inf or the p of a p-norm, a number from 1 to 1000000.", "'" + optimizer.clip_norm + "'");
  rules.at_least("optimizer.bucket_size", optimizer.bucket_size, 0);
  check_sharding(optimizer, rules);
}

void check_schedule(const config::ScheduleConfig& schedule, Rules& rules) {
  const auto is_rate = [](double rate) { return rate >= 0 && rate <= 1000; };  // beyond it nothing learns
  rules.option("schedule.lr", is_rate(schedule.lr), "must be from 0 to 1000.", concat(schedule.lr));
  const auto up_to_peak = [&](const char* option, double value) {
    if (schedule.lr < 0) return;  // said already
    rules.require(value >= 0 && value <= schedule.lr, concat(option, " must be from 0 to schedule.lr."),
                  concat(value, ", schedule.lr ", schedule.lr), concat("--", option, " ", value < 0 ? 0 : schedule.lr));
  };
  up_to_peak("schedule.min_lr", schedule.min_lr);
  rules.option("schedule.decoupled_lr", is_rate(schedule.decoupled_lr), "must be from 0 to 1000.",
               concat(schedule.decoupled_lr));
  const double least = schedule.decoupled_min_lr < 0 ? schedule.min_lr : schedule.decoupled_min_lr;
  rules.require(schedule.decoupled_lr <= 0 || least <= schedule.decoupled_lr,
                "schedule.decoupled_min_lr must be at most schedule.decoupled_lr.",
                concat(least, ", schedule.decoupled_lr ", schedule.decoupled_lr), "--schedule.decoupled_min_lr 0");
  up_to_peak("schedule.lr_warmup_init", schedule.lr_warmup_init);
  rules.choices("schedule", schedule);
  rules.range<std::int64_t>("schedule.lr_decay_samples", schedule.lr_decay_samples, 0, kMaxSamples);
  rules.range<std::int64_t>("schedule.lr_warmup_samples", schedule.lr_warmup_samples, 0, kMaxSamples);
  rules.range("schedule.lr_warmup_fraction", schedule.lr_warmup_fraction, 0.0, 1.0);
  rules.range<std::int64_t>("schedule.lr_wsd_decay_samples", schedule.lr_wsd_decay_samples, 0, kMaxSamples);
  rules.require(schedule.lr_decay_style != "WSD" || schedule.lr_wsd_decay_samples > 0,
                "schedule.lr_decay_style WSD needs schedule.lr_wsd_decay_samples.", "0", "");
  const double first = schedule.start_weight_decay, last = schedule.end_weight_decay;
  rules.option("schedule.start_weight_decay", first >= 0, "must be at least 0.", concat(first));
  rules.require(first < 0 || last >= first, "schedule.end_weight_decay must be at least schedule.start_weight_decay.",
                concat(last, ", schedule.start_weight_decay ", first), concat("--end-weight-decay ", first));
  rules.range<std::int64_t>("schedule.weight_decay_incr_samples", schedule.weight_decay_incr_samples, 0, kMaxSamples);
  if (!schedule.rampup_batch_size.empty())
    rules.require(
        schedule.rampup_batch_size.size() == 3 && schedule.rampup_batch_size[2] <= kMaxSamples,
        concat("schedule.rampup_batch_size must be start,increment,samples, with at most ", kMaxSamples, " samples."),
        concat(schedule.rampup_batch_size.size(), " numbers"), "leave --rampup-batch-size out");
}

void check_train(const config::TrainConfig& train, const config::DataConfig& data, Rules& rules) {
  rules.choices("train", train);
  rules.option("train.out", !train.out.empty(), "must name the run's folder.", "nothing");
  rules.range<std::int64_t>("train.train_iters", train.train_iters, 0, kMaxSteps);
  rules.range<std::int64_t>("train.micro_batch_size", train.micro_batch_size, 1, kMaxBatch);
  rules.range<std::int64_t>("train.global_batch_size", train.global_batch_size, 0, kMaxBatch);
  const std::int64_t longest = std::max(data.seq_length, data.decoder_seq_length);
  rules.require(train.micro_batch_size <= kMaxMicrobatchTokens / std::max<std::int64_t>(1, longest),
                concat("train.micro_batch_size x data.seq_length must be at most ", kMaxMicrobatchTokens, "."),
                concat(train.micro_batch_size, " x ", longest), "--micro-batch-size 1, or shorter samples");
  rules.range<std::int64_t>("train.eval_interval", train.eval_interval, 0, kMaxSteps);
  rules.range<std::int64_t>("train.start_eval_at_iter", train.start_eval_at_iter, 0, kMaxSteps);
  rules.range<std::int64_t>("train.eval_global_batch_size", train.eval_global_batch_size, 0, kMaxBatch);
  rules.range<std::int64_t>("train.eval_iters", train.eval_iters, train.eval_interval > 0 ? 1 : 0, kMaxSteps);
  rules.range<std::int64_t>("train.exit_interval", train.exit_interval, 0, kMaxSteps);
  rules.option("train.exit_duration_mins", std::isfinite(train.exit_duration_mins) && train.exit_duration_mins >= 0,
               "must be at least 0.", concat(train.exit_duration_mins));
  rules.require(train.seed < std::uint64_t{1} << 32,
                "train.seed must be below 2^32, as the shuffle of the data takes it.", concat(train.seed),
                concat("--train.seed ", train.seed % (std::uint64_t{1} << 32)));
  rules.option("train.label_smoothing", train.label_smoothing >= 0 && train.label_smoothing < 1,
               "must be from 0 to below 1.", concat(train.label_smoothing));
  rules.at_least("train.loss_chunk_tokens", train.loss_chunk_tokens, 0);
  rules.range<std::int64_t>("train.recompute_num_layers", train.recompute_num_layers, 0, kMaxLayers);
  rules.range<std::int64_t>("train.recompute_partial_microbatches", train.recompute_partial_microbatches, 0,
                            schedule::kMaxMicrobatches);
  rules.require(train.matmul_precision != "high" || train.dtype == "fp32",
                "train.matmul_precision = high is for train.dtype = fp32.", concat("train.dtype = ", train.dtype),
                "--train.matmul_precision highest");
}

/// Whether another number of positions would not be that of the folder whose network the run takes.
bool positions_are_given(const config::RunConfig& config) {
  const bool loads = !config.checkpoint.load.empty() || !config.lora.base.empty();
  return loads && config.model.max_position_embeddings > 0 &&
         (config.checkpoint.use_checkpoint_args || config.model.position_embedding_type == "learned_absolute");
}

/// Fills in the model's sizes that were 0 and checks those that depend on one another.
void resolve_model(config::RunConfig& config, const Facts& facts, Rules& rules) {
  config::ModelConfig& model = config.model;
  if (model.ffn_hidden_size == 0 && model.hidden_size <= kMaxWidth) {
    const std::int64_t width = std::max<std::int64_t>(model.hidden_size, 1);
    model.ffn_hidden_size = model.gated_linear_unit ? std::max<std::int64_t>(width * 8 / 3 / 64, 1) * 64 : 4 * width;
  }
  if (model.num_experts > 0 && model.moe_ffn_hidden_size == 0) model.moe_ffn_hidden_size = model.ffn_hidden_size;
  if (model.use_mup && model.mup_base_hidden_size == 0) model.mup_base_hidden_size = model.hidden_size;
  const config::ModelTraits& traits = config::model_traits(model.architecture);
  const std::string needs_pair =
      concat(" needs model.architecture ", config::names_with(&config::ModelTraits::encoder_decoder, " or "), ".");
  if (const auto resolve = model_kind(model.architecture).resolve; resolve != nullptr) resolve(config);
  if (model.max_position_embeddings == 0) model.max_position_embeddings = config.data.seq_length;
  if (model.vocab_size == 0) model.vocab_size = facts.tokenizer_vocab;
  rules.require(model.max_position_embeddings >= config.data.seq_length,
                "model.max_position_embeddings must be at least data.seq_length.",
                concat(model.max_position_embeddings, " positions, samples of ", config.data.seq_length, " tokens"),
                positions_are_given(config) ? concat("--seq-length ", model.max_position_embeddings)
                                            : concat("--max-position-embeddings ", config.data.seq_length));
  rules.require(model.vocab_size >= 1, "model.vocab_size must be given where no tokenizer is.", "0",
                "--vocab-size 50257, or --tokenizer FOLDER");
  rules.require(!facts.needs_data || !config.data.mock_data || model.vocab_size < 1 || model.vocab_size >= 3,
                "data.mock_data needs model.vocab_size of at least 3.", concat(model.vocab_size), "--vocab-size 1024");
  rules.require(model.vocab_size >= facts.tokenizer_vocab, "model.vocab_size must hold the tokenizer's tokens.",
                concat(model.vocab_size, ", the tokenizer has ", facts.tokenizer_vocab),
                concat("--model.vocab-size ", facts.tokenizer_vocab));
  const int tp = config.parallel.tp;
  const bool by_sequence = config.parallel.sp || config.train.distribute_saved_activations;
  rules.require(
      !by_sequence || config.data.seq_length % tp == 0,
      "data.seq_length must divide by parallel.tp where parallel.sp or train.distribute_saved_activations is on.",
      concat(config.data.seq_length, " tokens, tp ", tp),
      concat("--seq-length ", next_multiple(config.data.seq_length, tp)));
  rules.require(!by_sequence || !traits.encoder_decoder || config.data.decoder_seq_length % tp == 0,
                "data.decoder_seq_length must divide by parallel.tp where parallel.sp or "
                "train.distribute_saved_activations is on.",
                concat(config.data.decoder_seq_length, " tokens, tp ", tp),
                concat("--data.decoder_seq_length ", next_multiple(config.data.decoder_seq_length, tp)));
  rules.require(traits.encoder_decoder || config.data.decoder_seq_length == 0, "data.decoder_seq_length" + needs_pair,
                concat(config.data.decoder_seq_length), "--data.decoder_seq_length 0 (the default)");
  rules.require(traits.encoder_decoder || config.parallel.pipeline_split_rank == 0,
                "parallel.pipeline_split_rank" + needs_pair, concat(config.parallel.pipeline_split_rank),
                "--parallel.pipeline_split_rank 0 (the default)");
  const bool learned_pair = traits.encoder_decoder && model.position_embedding_type == "learned_absolute";
  rules.require(!learned_pair || model.max_position_embeddings >= config.data.decoder_seq_length,
                "model.max_position_embeddings must be at least data.decoder_seq_length.",
                concat(model.max_position_embeddings, " positions, ", config.data.decoder_seq_length, " tokens"),
                concat("--max-position-embeddings ", config.data.decoder_seq_length));
  rules.require(!learned_pair || (config.parallel.pp == 1 && config.parallel.vpp == 1),
                concat("model.architecture ", model.architecture,
                       " with learned positions, which both stacks read, must be one stage."),
                concat("pp ", config.parallel.pp, ", vpp ", config.parallel.vpp), "--pp 1 --vpp 1");
  rules.require(
      !traits.encoder_decoder || !config.parallel.variable_seq_lengths,
      concat("model.architecture ", model.architecture, " sends messages of the lengths that the options say."),
      "parallel.variable_seq_lengths true", "--parallel.variable_seq_lengths false (the default)");
  const std::int64_t heads = model.num_attention_heads, groups = model.num_query_groups;
  if (heads >= 1 && heads <= kMaxWidth && groups >= 0 && (groups == 0 || heads % groups == 0))
    rules.attempt([&] {
      std::int64_t also = 0;
      for (const std::int64_t split : {model.ffn_hidden_size, by_sequence ? config.data.seq_length : 0,
                                       by_sequence ? config.data.decoder_seq_length : 0})
        also = std::gcd(also, std::max<std::int64_t>(split, 0));
      check_heads(heads, groups > 0 ? groups : heads, tp, also);
    });
  rules.require(model.ffn_hidden_size % tp == 0, "model.ffn_hidden_size must divide by parallel.tp.",
                concat(model.ffn_hidden_size, ", tp ", tp),
                concat("--ffn-hidden-size ", next_multiple(model.ffn_hidden_size, tp)));
}

RankGrid resolve_grid(const config::ParallelConfig& parallel, const Facts& facts, Rules& rules) {
  const int world = facts.launched_world_size > 0 ? facts.launched_world_size : std::max(1, parallel.world_size);
  const std::int64_t model = std::int64_t{parallel.tp} * parallel.cp * parallel.pp;
  if (world > kMaxRanks || parallel.tp > kMaxRanks || parallel.cp < 1 || parallel.cp > kMaxRanks ||
      parallel.pp > kMaxStages || parallel.dp > kMaxRanks || parallel.dp < 0)
    return {};  // said already
  const int dp = parallel.dp > 0 ? parallel.dp : static_cast<int>(std::max<std::int64_t>(1, world / model));
  std::optional<RankGrid> grid;
  rules.attempt([&] { grid.emplace(parallel.tp, parallel.cp, dp, parallel.pp, world); });
  return grid.value_or(RankGrid());
}

/// Options of the pipeline that do nothing together with the others.
void check_pipeline_options(const config::ParallelConfig& parallel, Rules& rules) {
  const std::string& name = parallel.pp_schedule;
  const std::string schedule = name.empty() ? "the default schedule" : name;
  rules.require(parallel.pp_memory_limit <= 0 || name == schedule::kAuto,
                "parallel.pp_memory_limit needs the schedule auto.", schedule, "--schedule auto");
  const bool chunks = parallel.vpp > 1 || parallel.layers_per_virtual_stage > 0 || !parallel.pp_layout.empty();
  const std::string named = name.empty() && parallel.pp > 1 && chunks ? schedule::default_schedule(2).name : name;
  const bool takes_groups =
      named == schedule::kAuto || (schedule::is_name(named) && schedule::schedule_named(named).takes_groups);
  rules.require(parallel.microbatch_group_size <= 0 || takes_groups,
                concat("parallel.microbatch_group_size needs the schedule ",
                       schedule::schedule_names(&schedule::ScheduleInfo::takes_groups), " or auto."),
                schedule, "--parallel.microbatch_group_size 0 (the default)");
  if (parallel.pp != 1) return;
  rules.require(name.empty() || name == schedule::kAuto || !schedule::is_name(name),
                "a schedule needs a pipeline: parallel.pp of at least 2.", concat("--schedule ", name, ", pp 1"),
                "--schedule auto, or --pp 2");
  rules.require(
      !parallel.variable_seq_lengths,
      "parallel.variable_seq_lengths needs a pipeline, whose messages it is about: parallel.pp of at least 2.", "pp 1",
      "--parallel.variable_seq_lengths false (the default), or --pp 2");
}

/// Of all stacks.
std::int64_t total_layers(const config::ModelConfig& model) {
  ModelShape shape{.num_layers = model.num_layers};
  if (const auto describe = model_kind(model.architecture).describe; describe != nullptr) describe(model, shape);
  return shape.num_layers;
}

/// 0 where the numbers of layers are wrong, which is said elsewhere.
std::int64_t layers_or_none(const config::ModelConfig& model) {
  const auto is_right = [](std::int64_t layers) { return layers >= 0 && layers <= kMaxLayers; };
  return is_right(model.num_layers) && is_right(model.decoder_num_layers) ? total_layers(model) : 0;
}

/// The stages, who holds them, and the schedule, as far as that needs no more than the layout.
struct Pipeline {
  std::vector<StageSpec> parts;
  schedule::Placement placement;
  std::string schedule = schedule::default_schedule(1).name;  // or "auto"
};

Pipeline resolve_pipeline(const config::RunConfig& config, const Facts& facts, Rules& rules) {
  Pipeline pipeline;
  const config::ParallelConfig& parallel = config.parallel;
  const auto in_range = [](std::int64_t value, std::int64_t low, std::int64_t high) {
    return value >= low && value <= high;
  };
  if (!in_range(parallel.pp, 1, kMaxStages) || !in_range(parallel.vpp, 1, kMaxStages) ||
      !in_range(parallel.layers_per_virtual_stage, 0, kMaxLayers) ||
      !in_range(parallel.first_stage_layers, 0, kMaxLayers) || !in_range(parallel.last_stage_layers, 0, kMaxLayers) ||
      !in_range(config.model.num_layers, 1, kMaxLayers) || !in_range(config.model.decoder_num_layers, 0, kMaxLayers) ||
      !in_range(parallel.microbatch_group_size, 0, kMaxGroup))
    return pipeline;  // said already
  SplitCosts costs;
  if (rules.hold() && parallel.pp_layout == "balanced")
    costs = split_costs(
        config, model_shape(config),
        static_cast<int>(std::min<std::int64_t>(std::int64_t{parallel.pp} * parallel.vpp, total_layers(config.model))));
  rules.attempt([&] {
    const std::int64_t layers = total_layers(config.model);
    pipeline.parts = parallel.pipeline_split_rank > 0
                         ? split_stage_parts(parallel, config.model.num_layers, layers - config.model.num_layers, costs)
                         : stage_parts(parallel, layers, costs);
    const int chunks = static_cast<int>(pipeline.parts.size()) / parallel.pp;
    const schedule::ScheduleInfo* info = &schedule::default_schedule(chunks);
    pipeline.schedule = info->name;
    pipeline.placement = schedule::Placement::looped(parallel.pp, chunks);
    if (is_from_file(parallel.pp_schedule, facts.schedule_file)) return;
    const bool is_auto = parallel.pp_schedule == schedule::kAuto;  // resolve_schedule() chooses
    if (!is_auto && !parallel.pp_schedule.empty()) info = &schedule::schedule_named(parallel.pp_schedule);
    pipeline.schedule = is_auto ? schedule::kAuto : info->name;
    if (is_auto) return;
    const schedule::Shape shape{.num_ranks = parallel.pp,
                                .num_chunks = chunks,
                                .num_microbatches = info->min_microbatches(parallel.pp),
                                .microbatch_group = parallel.microbatch_group_size};
    pipeline.placement = schedule::generate(pipeline.schedule, shape).placement;
  });
  return pipeline;
}

}  // namespace

std::int64_t rotary_features(std::int64_t head_size, double rotary_percent) {
  return static_cast<std::int64_t>(static_cast<double>(head_size) * rotary_percent);
}

ModelShape model_shape(const config::RunConfig& config) {
  ModelShape shape = model_shape(config.model, config.parallel.tp);
  if (config.fp8.format == "none" || !config.fp8.first_last_layers_bf16) return shape;
  shape.wide_first = config.fp8.num_layers_at_start_in_bf16;
  shape.wide_last = config.fp8.num_layers_at_end_in_bf16;
  return shape;
}

ModelShape model_shape(const config::ModelConfig& model, int tp) {
  const auto head = static_cast<Head>(std::ranges::find(kHeads, model.head) - kHeads.begin());
  ModelShape shape{.num_layers = model.num_layers,
                   .hidden = model.hidden_size,
                   .num_heads = model.num_attention_heads,
                   .ffn_hidden = model.ffn_hidden_size,
                   .vocab = model.vocab_size,
                   .padded_vocab = pad_vocab(model.vocab_size, model.make_vocab_size_divisible_by, tp),
                   .max_positions = model.max_position_embeddings,
                   .tied_output = head == Head::Tokens && !model.untie_embeddings_and_output_weights,
                   .init_std = model.init_method_std,
                   .num_groups = model.num_query_groups,
                   .head_size = model.kv_channels,
                   .rms_norm = model.normalization == "RMSNorm",
                   .norm_bias = model.norm_bias,
                   .wide_stream = model.fp32_residual_connection,
                   .gated = model.gated_linear_unit,
                   .linear_bias = model.add_bias_linear,
                   .attention = model,
                   .residual_after_norm = model.apply_residual_connection_post_layernorm,
                   .embedding_norm = model.embedding_layernorm,
                   .norms = {.before = model.norm_position != "behind", .behind = model.norm_position != "before"},
                   .norm_1p = model.apply_layernorm_1p,
                   .parallel = model.parallel_residual,
                   .shared_norm = model.parallel_residual && model.parallel_shared_norm,
                   .attention_bias = model.linear_bias_in != "mlp",
                   .mlp_bias = model.linear_bias_in != "attention",
                   .learned_positions = model.position_embedding_type == "learned_absolute",
                   .position_offset = model.position_offset,
                   .task_head = head,
                   .num_classes = model.num_classes};
  shape.experts = experts_of(model);
  shape.moe_layer_freq = std::max<std::int64_t>(model.moe_layer_freq, 1);
  shape.dense_layers = shape.experts ? model.first_k_dense_replace : 0;
  add_latents(model, shape);
  shape.mtp_depths = model.mtp_num_layers;
  shape.words_init_std = model.embedding_init_method_std;
  shape.xavier = shape.words_xavier = model.init_method_xavier_uniform;
  if (shape.words_init_std > 0 && shape.words_init_std != shape.init_std) shape.words_xavier = false;
  if (model.use_mup) {  // Yang et al. 2021, in the form that Megatron-LM has
    const double width = mup_width(model);
    shape.words_init_std = shape.output_matrix_init_std = shape.words_std();
    shape.init_std /= std::sqrt(width);
    shape.embedding_scale = model.mup_embedding_mult;
    if (shape.predicts_tokens()) shape.output_scale = model.mup_output_mult == 1 ? 1 / width : model.mup_output_mult;
    const double base = model.mup_base_head_dim > 0 ? std::sqrt(model.mup_base_head_dim) : 1;
    shape.attention_scale = base / std::pow(static_cast<double>(shape.head()), model.mup_attn_scale_power);
  }
  if (model.query_pre_attn_scalar > 0) shape.attention_scale = 1 / std::sqrt(model.query_pre_attn_scalar);
  shape.root_scaled_words = model.scale_embeddings;
  shape.logit_soft_cap = model.final_logit_softcapping;
  if (const auto describe = model_kind(model.architecture).describe; describe != nullptr) describe(model, shape);
  return shape;
}

namespace {

ResolvedRun resolve_as_given(config::RunConfig config, const Facts& facts) {
  Rules rules;
  check_model(config.model, rules);
  check_parallel(config.parallel, facts, rules);
  check_data(config.data, config::model_traits(config.model.architecture).reads_sentences, facts, rules);
  check_fim(config.fim, rules);
  check_optimizer(config.optimizer, rules);
  check_precision(config.optimizer, config.train.dtype, rules);
  check_schedule(config.schedule, rules);
  check_train(config.train, config.data, rules);
  check_guard(config.guard, rules);
  rules.require(config.guard.rerun_interval == 0 || config.parallel.device != "cuda" || config.train.deterministic_mode,
                "guard.rerun_interval compares bits, which are the same in every run with train.deterministic_mode.",
                concat("guard.rerun_interval ", config.guard.rerun_interval), "--deterministic-mode");
  check_saving(config.checkpoint, config.log, rules);
  check_tuning(config, rules);
  check_fp8(config, rules);
  RankGrid grid;
  std::vector<BatchStep> steps;
  if (config.parallel.tp >= 1 && config.parallel.pp >= 1) {
    resolve_model(config, facts, rules);
    grid = resolve_grid(config.parallel, facts, rules);
    check_expert_layout(config, grid.sample_shares() * grid.sequence_shares(), rules);
    check_sequence_shares(config, rules);
    check_named_ranks(config.log, grid.world_size(), rules);
    steps = resolve_batch_steps(config, grid.sample_shares(), facts, rules);
    if (steps.empty()) keep_batch(config, grid.sample_shares(), facts.resumed_batch, rules);
  }
  check_recomputation(config.train, config.parallel.pp, layers_or_none(config.model), rules);
  check_pipeline_options(config.parallel, rules);
  Pipeline pipeline = resolve_pipeline(config, facts, rules);
  const Samples samples = resolve_samples(config, grid.sample_shares(), steps, facts, rules);
  if (rules.hold() && config.fp8.format != "none") check_fp8_blocks(config, model_shape(config), rules);
  rules.finish();
  ModelShape shape = model_shape(config);
  shape.lora = lora_of(config.lora);
  if (!config.optimizer.lr_mult.empty() || !config.optimizer.wd_mult.empty())
    check_patterns(config.optimizer, trained_parameters(shape, 1, 0, {whole_model(shape.num_layers)}));
  ResolvedRun run{.config = std::move(config),
                  .grid = grid,
                  .shape = shape,
                  .parts = std::move(pipeline.parts),
                  .placement = std::move(pipeline.placement),
                  .schedule_name = pipeline.schedule,
                  .schedule_file = {},
                  .batch_schedule = *samples.batches,
                  .learning_rate = samples.rate,
                  .words_learning_rate = samples.words_rate,
                  .weight_decay = samples.weight_decay,
                  .train_samples = samples.total};
  const std::int64_t unit = run.config.train.micro_batch_size * grid.sample_shares();
  run.microbatches_per_step = run.config.train.global_batch_size / unit;
  if (!run.config.distill.teacher.empty()) run.teacher = facts.teacher;
  resolve_schedule(run, facts.schedule_file);
  if (run.teacher) check_teacher_network(run, *run.teacher);
  resolve_memory_limit(run);
  return run;
}

}  // namespace

std::optional<ResolvedRun> resolve_if_allowed(config::RunConfig config, const Facts& facts) {
  try {
    return resolve_as_given(std::move(config), facts);
  } catch (const ConfigError&) {
    return std::nullopt;
  }
}

std::string broken_rules(const config::RunConfig& config, const Facts& facts) {
  try {
    resolve_as_given(config, facts);
    return "";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

ResolvedRun resolve(config::RunConfig config, const Facts& facts) {
  const auto broken = [&](const config::RunConfig& tried) { return broken_rules(tried, facts); };
  try {
    return resolve_as_given(config, facts);
  } catch (const ConfigError& error) {
    throw ConfigError(with_working_fixes(error.what(), config, facts, broken));
  }
}

}  // namespace megatron::plan
