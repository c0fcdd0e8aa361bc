#include "megatron/plan/rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <vector>

#include "megatron/base/error.h"
#include "tests/plan/refusal.h"

namespace megatron::plan {
namespace {

using config::RunConfig;
using testing::HasSubstr;
using testing::Not;

RunConfig valid() {
  RunConfig config;
  config.model.vocab_size = 1000;
  return config;
}

TEST(Resolve, FillsInWhatFollowsFromTheOptions) {
  RunConfig config = valid();
  config.parallel.tp = 2;
  config.parallel.world_size = 8;
  config.train.micro_batch_size = 3;
  config.train.train_iters = 50;
  const ResolvedRun run = resolve(config);
  EXPECT_EQ(run.grid.size(Axis::Tp), 2);
  EXPECT_EQ(run.grid.size(Axis::Dp), 4);
  EXPECT_EQ(run.config.model.ffn_hidden_size, 1024);
  EXPECT_EQ(run.config.model.max_position_embeddings, 128);
  EXPECT_EQ(run.config.train.global_batch_size, 12);
  EXPECT_EQ(run.microbatches_per_step, 1);
  EXPECT_EQ(run.train_samples, 600);
  EXPECT_EQ(run.learning_rate.decay_samples, 600);
  EXPECT_EQ(run.shape.padded_vocab, 1024);
}

TEST(Resolve, ShardsGradientsBesideTheOptimizerAlone) {
  RunConfig config = valid();
  auto& optimizer = config.optimizer;
  for (const char* strategy : {"no_shard", "optim"}) {
    optimizer.data_parallel_sharding_strategy = strategy;
    EXPECT_EQ(refusal_of(config), "no error");
  }
  for (const std::string strategy : {"optim_grads", "optim_grads_params"}) {
    optimizer.data_parallel_sharding_strategy = strategy;
    optimizer.use_distributed_optimizer = false;
    EXPECT_THAT(refusal_of(config), HasSubstr(strategy + " needs optimizer.use_distributed_optimizer"));
    optimizer.use_distributed_optimizer = true;
    EXPECT_EQ(refusal_of(config), "no error");
  }
  optimizer.data_parallel_sharding_strategy = "no_shard";
  EXPECT_THAT(refusal_of(config), HasSubstr("no_shard must go without"));
  optimizer.data_parallel_sharding_strategy = "optim_grad";
  EXPECT_THAT(refusal_of(config), HasSubstr("optim_grads"));
}

TEST(Resolve, TakesTheTokenizersVocabularyWhereNoneIsGiven) {
  RunConfig config;
  EXPECT_EQ(resolve(config, {.tokenizer_vocab = 300}).shape.vocab, 300);
  EXPECT_THAT(refusal_of(config), HasSubstr("model.vocab_size must be given"));
  config.model.vocab_size = 200;
  EXPECT_THAT(refusal_of(config, {.tokenizer_vocab = 300}), HasSubstr("fix:  --model.vocab-size 300"));
}

TEST(Resolve, FollowsTheLauncherRatherThanTheRecipe) {
  RunConfig config = valid();
  config.parallel.world_size = 2;
  EXPECT_EQ(resolve(config, {.launched_world_size = 6}).grid.size(Axis::Dp), 6);
}

TEST(Resolve, LeavesTheRanksThatTensorAndPipelineDoNotTakeToData) {
  RunConfig config = valid();
  config.parallel.world_size = 16;
  config.parallel.tp = 2;
  config.parallel.pp = 4;
  EXPECT_EQ(resolve(config).grid.size(Axis::Dp), 2);
  EXPECT_EQ(resolve(config).grid.size(Axis::Pp), 4);
}

TEST(Resolve, TakesSequenceParallelismWithoutTensorParallelism) {
  RunConfig config = valid();
  config.parallel.sp = true;
  EXPECT_EQ(refusal_of(config), "no error");
}

TEST(Resolve, StaysResolvedWhenResolvedAgain) {
  RunConfig config = valid();
  config.schedule.rampup_batch_size = {1, 1, 20};
  config.train.global_batch_size = 8;
  const ResolvedRun once = resolve(config);
  const ResolvedRun twice = resolve(once.config);
  EXPECT_EQ(twice.train_samples, once.train_samples);
  EXPECT_EQ(twice.config.model.ffn_hidden_size, once.config.model.ffn_hidden_size);
  EXPECT_EQ(twice.learning_rate.decay_samples, once.learning_rate.decay_samples);
}

TEST(Resolve, AResumedRunKeepsItsGlobalBatch) {
  const auto batches = [](int dp, std::int64_t micro, std::int64_t global, std::int64_t saved) {
    RunConfig config = valid();
    config.parallel.world_size = dp;
    config.train.micro_batch_size = micro;
    config.train.global_batch_size = global;
    const ResolvedRun run = resolve(config, {.resumed_batch = saved});
    return std::vector{run.config.train.global_batch_size, run.config.train.micro_batch_size,
                       run.microbatches_per_step};
  };
  EXPECT_EQ(batches(2, 4, 0, 0), (std::vector<std::int64_t>{8, 4, 1})) << "a new run";
  EXPECT_EQ(batches(2, 4, 0, 8), (std::vector<std::int64_t>{8, 4, 1}));
  EXPECT_EQ(batches(1, 4, 0, 8), (std::vector<std::int64_t>{8, 4, 2})) << "accumulation follows";
  EXPECT_EQ(batches(4, 4, 0, 8), (std::vector<std::int64_t>{8, 2, 1})) << "the micro batch follows";
  EXPECT_EQ(batches(2, 3, 0, 8), (std::vector<std::int64_t>{8, 2, 2}));
  EXPECT_EQ(batches(4, 4, 8, 8), (std::vector<std::int64_t>{8, 2, 1})) << "as in the saved recipe";
  EXPECT_EQ(batches(4, 4, 16, 8), (std::vector<std::int64_t>{16, 4, 1})) << "another is asked for";
  RunConfig config = valid();
  config.parallel.world_size = 16;
  config.train.micro_batch_size = 2;
  const std::string error = refusal_of(config, {.resumed_batch = 8});
  EXPECT_EQ(error,
            "A resumed run keeps its global batch, which must be a multiple of dp.\n"
            "  got:  global batch 8 in the checkpoint, dp 16\n"
            "  fix:  --global-batch-size 32, another batch from here on; or ranks of which dp divides 8");
  config.train.global_batch_size = 32;
  EXPECT_EQ(refusal_of(config, {.resumed_batch = 8}), "no error") << "as its fix says";
  config.parallel.world_size = 4;
  config.train.global_batch_size = 0;
  config.schedule.rampup_batch_size = {4, 4, 20};
  EXPECT_EQ(resolve(config, {.resumed_batch = 8}).config.train.micro_batch_size, 1) << "the ramp's steps divide too";
}

TEST(Resolve, ReportsAllViolatedRulesTogether) {
  RunConfig config = valid();
  config.model.num_attention_heads = 7;
  config.parallel.backend = "mpi";
  config.data.split = "1;2";
  config.schedule.lr_decay_style = "cosin";
  config.train.dtype = "fp8";
  config.train.micro_batch_size = 4;
  config.train.global_batch_size = 6;
  const std::string error = refusal_of(config);
  for (const char* rule : {"model.num_attention_heads", "parallel.backend", "data.split", "schedule.lr_decay_style",
                           "train.dtype", "train.global_batch_size must be a multiple"})
    EXPECT_THAT(error, HasSubstr(rule));
  std::size_t reported = 0;
  for (std::size_t at = error.find("got:"); at != std::string::npos; at = error.find("got:", at + 1)) ++reported;
  EXPECT_EQ(reported, 6u) << error;
}

struct Violation {
  const char* named;  ///< the option that the message must name
  std::function<void(RunConfig&)> make;
};

TEST(Resolve, NamesTheRanksThatGroupsOfHeadsFit) {
  RunConfig config = valid();
  config.model.hidden_size = 12 * 8;
  config.model.num_attention_heads = 12;
  config.model.num_query_groups = 3;
  config.parallel.tp = config.parallel.world_size = 4;
  const std::string error = refusal_of(config);
  EXPECT_THAT(error, HasSubstr("model.num_query_groups must divide by it or it by them"));
  EXPECT_THAT(error, HasSubstr("12 heads in 3 groups, tp=4"));
  EXPECT_THAT(error, HasSubstr("fix:  --tp 1"));
}

TEST(Resolve, ProposesRanksThatEveryRuleAllows) {
  RunConfig config = valid();
  config.model.hidden_size = 9 * 64;
  config.model.num_attention_heads = 9;
  config.model.num_query_groups = 3;
  config.model.ffn_hidden_size = 1536;  // which nine ranks cannot share
  config.parallel.tp = config.parallel.world_size = 6;
  EXPECT_THAT(refusal_of(config), HasSubstr("fix:  --tp 3"));
  EXPECT_THAT(refusal_of(config), Not(HasSubstr("or 9")));
  config.model.ffn_hidden_size = 1152;
  EXPECT_THAT(refusal_of(config), HasSubstr("fix:  --tp 3 or 9"));
  config.parallel.sp = true;  // 128 positions
  EXPECT_THAT(refusal_of(config), HasSubstr("fix:  --tp 1"));
  EXPECT_THAT(refusal_of(config), Not(HasSubstr("--tp 1 or")));
  for (const int tp : {1, 3, 9}) {
    config.parallel.tp = config.parallel.world_size = tp;
    config.parallel.sp = false;
    EXPECT_EQ(refusal_of(config), "no error") << tp;
  }
}

TEST(Resolve, NamesTheOptionOfEveryViolation) {
  const std::vector<Violation> violations = {
      {"model.num_layers", [](RunConfig& c) { c.model.num_layers = 0; }},
      {"model.hidden_size", [](RunConfig& c) { c.model.hidden_size = -8; }},
      {"model.hidden_size", [](RunConfig& c) { c.model.hidden_size = 255; }},
      {"model.num_attention_heads", [](RunConfig& c) { c.model.num_attention_heads = 0; }},
      {"model.ffn_hidden_size", [](RunConfig& c) { c.model.ffn_hidden_size = -1; }},
      {"model.max_position_embeddings", [](RunConfig& c) { c.model.max_position_embeddings = 127; }},
      {"model.make_vocab_size_divisible_by", [](RunConfig& c) { c.model.make_vocab_size_divisible_by = 0; }},
      {"model.layernorm_epsilon", [](RunConfig& c) { c.model.layernorm_epsilon = 0; }},
      {"model.activation", [](RunConfig& c) { c.model.activation = "tanh"; }},
      {"model.normalization", [](RunConfig& c) { c.model.normalization = "layernorm"; }},
      {"model.num_query_groups", [](RunConfig& c) { c.model.num_query_groups = 3; }},
      {"model.kv_channels", [](RunConfig& c) { c.model.kv_channels = -1; }},
      {"model.num_attention_heads x model.kv_channels", [](RunConfig& c) { c.model.kv_channels = 60000; }},
      {"model.position_embedding_type", [](RunConfig& c) { c.model.position_embedding_type = "rotary"; }},
      {"model.rotary_base", [](RunConfig& c) { c.model.rotary_base = 0; }},
      {"model.rotary_percent", [](RunConfig& c) { c.model.rotary_percent = 1.5; }},
      {"rope rotates pairs",
       [](RunConfig& c) {
         c.model.position_embedding_type = "rope";
         c.model.kv_channels = 5;
       }},
      {"model.rope_scaling_factor", [](RunConfig& c) { c.model.rope_scaling_factor = 0.5; }},
      {"model.rope_high_freq_factor", [](RunConfig& c) { c.model.rope_high_freq_factor = 1; }},
      {"model.rope_original_positions", [](RunConfig& c) { c.model.rope_original_positions = 0; }},
      {"model.mtp_num_layers must be from", [](RunConfig& c) { c.model.mtp_num_layers = -1; }},
      {"model.mtp_loss_scaling_factor", [](RunConfig& c) { c.model.mtp_loss_scaling_factor = -1; }},
      {"model.init_method_std", [](RunConfig& c) { c.model.init_method_std = -1; }},
      {"model.hidden_dropout", [](RunConfig& c) { c.model.hidden_dropout = 1; }},
      {"model.attention_dropout", [](RunConfig& c) { c.model.attention_dropout = -0.1; }},
      {"parallel.world_size", [](RunConfig& c) { c.parallel.world_size = -1; }},
      {"parallel.tp", [](RunConfig& c) { c.parallel.tp = 0; }},
      {"world size", [](RunConfig& c) { c.parallel.tp = 2; }},
      {"parallel.dp", [](RunConfig& c) { c.parallel.dp = -2; }},
      {"model.num_attention_heads must divide", [](RunConfig& c) { c.parallel.tp = c.parallel.world_size = 8; }},
      {"parallel.launch", [](RunConfig& c) { c.parallel.launch = "forks"; }},
      {"parallel.device", [](RunConfig& c) { c.parallel.device = "tpu"; }},
      {"parallel.backend nccl", [](RunConfig& c) { c.parallel.backend = "nccl"; }},
      {"parallel.backend local",
       [](RunConfig& c) {
         c.parallel.backend = "local";
         c.parallel.launch = "processes";
       }},
      {"parallel.pp ", [](RunConfig& c) { c.parallel.pp = 0; }},
      {"parallel.vpp", [](RunConfig& c) { c.parallel.vpp = 0; }},
      {"parallel.layers_per_virtual_stage", [](RunConfig& c) { c.parallel.layers_per_virtual_stage = -1; }},
      {"parallel.first_stage_layers", [](RunConfig& c) { c.parallel.first_stage_layers = -1; }},
      {"parallel.last_stage_layers", [](RunConfig& c) { c.parallel.last_stage_layers = -1; }},
      {"parallel.pp_memory_limit", [](RunConfig& c) { c.parallel.pp_memory_limit = -1; }},
      {"parallel.microbatch_group_size", [](RunConfig& c) { c.parallel.microbatch_group_size = -1; }},
      {"parallel.pp_memory_limit needs the schedule auto", [](RunConfig& c) { c.parallel.pp_memory_limit = 1 << 20; }},
      {"parallel.microbatch_group_size needs", [](RunConfig& c) { c.parallel.microbatch_group_size = 4; }},
      {"a schedule needs a pipeline", [](RunConfig& c) { c.parallel.pp_schedule = "1f1b"; }},
      {"parallel.variable_seq_lengths needs a pipeline", [](RunConfig& c) { c.parallel.variable_seq_lengths = true; }},
      {"log.trace must be a file that ends in .json", [](RunConfig& c) { c.log.trace = "trace"; }},
      {"parallel.pp_communication", [](RunConfig& c) { c.parallel.pp_communication = "early"; }},
      {"data.seq_length must divide by parallel.tp",
       [](RunConfig& c) {
         c.parallel.tp = c.parallel.world_size = 4;
         c.parallel.sp = true;
         c.data.seq_length = 126;
       }},
      {"data.seq_length must divide by parallel.tp",
       [](RunConfig& c) {
         c.parallel.tp = c.parallel.world_size = 4;
         c.train.recompute = "full";
         c.train.distribute_saved_activations = true;
         c.data.seq_length = 126;
       }},
      {"train.recompute ", [](RunConfig& c) { c.train.recompute = "some"; }},
      {"train.recompute_method", [](RunConfig& c) { c.train.recompute_method = "all"; }},
      {"train.recompute_num_layers", [](RunConfig& c) { c.train.recompute_num_layers = -1; }},
      {"train.recompute_num_layers needs train.recompute full", [](RunConfig& c) { c.train.recompute_num_layers = 2; }},
      {"train.recompute_method block needs",
       [](RunConfig& c) {
         c.train.recompute = "full";
         c.train.recompute_method = "block";
       }},
      {"train.distribute_saved_activations needs", [](RunConfig& c) { c.train.distribute_saved_activations = true; }},
      {"train.recompute_modules must be one of",
       [](RunConfig& c) {
         c.train.recompute = "selective";
         c.train.recompute_modules = {"moe"};
       }},
      {"train.recompute selective needs",
       [](RunConfig& c) {
         c.train.recompute = "selective";
         c.train.recompute_modules = {};
       }},
      {"parallel.threads_per_rank", [](RunConfig& c) { c.parallel.threads_per_rank = -1; }},
      {"parallel.timeout_s", [](RunConfig& c) { c.parallel.timeout_s = 0; }},
      {"data.split", [](RunConfig& c) { c.data.split = ""; }},
      {"data.split", [](RunConfig& c) { c.data.split = "0,0,0"; }},
      {"data.split", [](RunConfig& c) { c.data.split = "1,2,3,4"; }},
      {"data.split", [](RunConfig& c) { c.data.split = "1,-2"; }},
      {"data.seq_length", [](RunConfig& c) { c.data.seq_length = 0; }},
      {"optimizer.adam_beta1", [](RunConfig& c) { c.optimizer.adam_beta1 = 1; }},
      {"optimizer.adam_beta2", [](RunConfig& c) { c.optimizer.adam_beta2 = -0.5; }},
      {"optimizer.adam_eps", [](RunConfig& c) { c.optimizer.adam_eps = 0; }},
      {"optimizer.weight_decay", [](RunConfig& c) { c.optimizer.weight_decay = -1; }},
      {"optimizer.clip_grad", [](RunConfig& c) { c.optimizer.clip_grad = -1; }},
      {"optimizer.clip_norm", [](RunConfig& c) { c.optimizer.clip_norm = "l"; }},
      {"optimizer.bucket_size", [](RunConfig& c) { c.optimizer.bucket_size = -1; }},
      {"schedule.lr ", [](RunConfig& c) { c.schedule.lr = -1; }},
      {"schedule.lr ", [](RunConfig& c) { c.schedule.lr = 1e38; }},
      {"schedule.decoupled_lr", [](RunConfig& c) { c.schedule.decoupled_lr = 1001; }},
      {"optimizer.muon_num_ns_steps", [](RunConfig& c) { c.optimizer.muon_num_ns_steps = 2147483647; }},
      {"log.profile_step_start", [](RunConfig& c) { c.log.profile_step_start = -1; }},
      {"log.profile_ranks",
       [](RunConfig& c) {
         c.log.profile = true;
         c.log.profile_ranks = {0, 7};
       }},
      {"log.profile_ranks",
       [](RunConfig& c) {
         c.log.profile = true;
         c.log.profile_ranks = {-1};
       }},
      {"schedule.min_lr", [](RunConfig& c) { c.schedule.min_lr = 1; }},
      {"schedule.lr_warmup_init", [](RunConfig& c) { c.schedule.lr_warmup_init = 1; }},
      {"warm-up", [](RunConfig& c) { c.schedule.lr_warmup_samples = 100; }},
      {"schedule.lr_warmup_fraction", [](RunConfig& c) { c.schedule.lr_warmup_fraction = 1.5; }},
      {"schedule.lr_decay_samples", [](RunConfig& c) { c.schedule.lr_decay_samples = -1; }},
      {"schedule.lr_wsd_decay_samples", [](RunConfig& c) { c.schedule.lr_decay_style = "WSD"; }},
      {"schedule.lr_wsd_decay_samples",
       [](RunConfig& c) {
         c.schedule.lr_decay_style = "WSD";
         c.schedule.lr_wsd_decay_samples = 101;
       }},
      {"schedule.lr_wsd_decay_style", [](RunConfig& c) { c.schedule.lr_wsd_decay_style = "step"; }},
      {"schedule.rampup_batch_size",
       [](RunConfig& c) {
         c.schedule.rampup_batch_size = {1, 2};
       }},
      {"train.out", [](RunConfig& c) { c.train.out = ""; }},
      {"train.train_iters", [](RunConfig& c) { c.train.train_iters = -1; }},
      {"train.micro_batch_size", [](RunConfig& c) { c.train.micro_batch_size = 0; }},
      {"train.micro_batch_size x data.seq_length", [](RunConfig& c) { c.train.micro_batch_size = 1 << 24; }},
      {"train.global_batch_size", [](RunConfig& c) { c.train.global_batch_size = -4; }},
      {"train.eval_interval", [](RunConfig& c) { c.train.eval_interval = -1; }},
      {"train.eval_iters",
       [](RunConfig& c) {
         c.train.eval_interval = 10;
         c.train.eval_iters = 0;
       }},
      {"train.eval_global_batch_size", [](RunConfig& c) { c.train.eval_global_batch_size = -4; }},
      {"train.eval_global_batch_size must be a multiple",
       [](RunConfig& c) {
         c.train.micro_batch_size = 2;
         c.train.eval_global_batch_size = 5;
       }},
      {"train.exit_interval", [](RunConfig& c) { c.train.exit_interval = -1; }},
      {"train.exit_duration_mins", [](RunConfig& c) { c.train.exit_duration_mins = -1; }},
      {"train.seed", [](RunConfig& c) { c.train.seed = std::uint64_t{1} << 32; }},
      {"train.dtype", [](RunConfig& c) { c.train.dtype = "float"; }},
      {"optimizer.name", [](RunConfig& c) { c.optimizer.name = "adafactor"; }},
      {"optimizer.sgd_momentum", [](RunConfig& c) { c.optimizer.sgd_momentum = 1; }},
      {"optimizer.lion_beta1", [](RunConfig& c) { c.optimizer.lion_beta1 = -1; }},
      {"optimizer.lion_beta2", [](RunConfig& c) { c.optimizer.lion_beta2 = 1; }},
      {"optimizer.lr_mult",
       [](RunConfig& c) {
         c.optimizer.lr_mult = {"embedding"};
       }},
      {"optimizer.lr_mult: each pattern must match",
       [](RunConfig& c) {
         c.optimizer.lr_mult = {"decoder.*.bias=2", "encoder.*=2"};
       }},
      {"optimizer.wd_mult: each pattern must match",
       [](RunConfig& c) {
         c.optimizer.wd_mult = {"output_layer.weight=1"};  // tied
       }},
      {"optimizer.stochastic_rounding needs", [](RunConfig& c) { c.optimizer.stochastic_rounding = true; }},
      {"optimizer.grad_dtype must be one of", [](RunConfig& c) { c.optimizer.grad_dtype = "int8"; }},
      {"optimizer.grad_dtype must be fp32 or train.dtype", [](RunConfig& c) { c.optimizer.grad_dtype = "bf16"; }},
      {"optimizer.state_dtype", [](RunConfig& c) { c.optimizer.state_dtype = "fp16"; }},
      {"optimizer.loss_scale needs train.dtype fp16", [](RunConfig& c) { c.optimizer.loss_scale = 8; }},
      {"optimizer.initial_loss_scale", [](RunConfig& c) { c.optimizer.initial_loss_scale = 0; }},
      {"optimizer.min_loss_scale", [](RunConfig& c) { c.optimizer.min_loss_scale = -1; }},
      {"optimizer.loss_scale_window", [](RunConfig& c) { c.optimizer.loss_scale_window = 0; }},
      {"optimizer.hysteresis", [](RunConfig& c) { c.optimizer.hysteresis = 0; }},
      {"train.label_smoothing", [](RunConfig& c) { c.train.label_smoothing = 1; }},
      {"train.loss_chunk_tokens", [](RunConfig& c) { c.train.loss_chunk_tokens = -1; }},
      {"guard.rerun_interval compares bits",
       [](RunConfig& c) {
         c.guard.rerun_interval = 2;
         c.parallel.device = "cuda";
       }},
      {"train.kernels", [](RunConfig& c) { c.train.kernels = "sse"; }},
      {"train.matmul_precision must be one of", [](RunConfig& c) { c.train.matmul_precision = "medium"; }},
      {"train.matmul_precision = high is for train.dtype = fp32",
       [](RunConfig& c) {
         c.train.matmul_precision = "high";
         c.train.dtype = "bf16";
       }},
      {"checkpoint.save_interval", [](RunConfig& c) { c.checkpoint.save_interval = -2; }},
      {"checkpoint.keep_last", [](RunConfig& c) { c.checkpoint.keep_last = -1; }},
      {"checkpoint.keep_every", [](RunConfig& c) { c.checkpoint.keep_every = -1; }},
      {"checkpoint.memory_interval must be", [](RunConfig& c) { c.checkpoint.memory_interval = -1; }},
      {"checkpoint.memory_interval needs checkpoints",
       [](RunConfig& c) {
         c.checkpoint.memory_interval = 5;
         c.checkpoint.save_interval = -1;
       }},
      {"checkpoint.finetune", [](RunConfig& c) { c.checkpoint.finetune = true; }},
      {"log.interval", [](RunConfig& c) { c.log.interval = 0; }},
      {"progress", [](RunConfig& c) { c.log.progress = "maybe"; }},
  };
  EXPECT_EQ(refusal_of(valid()), "no error");
  for (const Violation& violation : violations) {
    RunConfig config = valid();
    violation.make(config);
    EXPECT_THAT(refusal_of(config), HasSubstr(violation.named));
  }
}

RunConfig valid_t5() {
  RunConfig config = valid();
  config.model.architecture = "t5";
  config.model.position_embedding_type = "relative";
  return config;
}

TEST(Resolve, CountsTheLayersOfBothStacksOfAT5) {
  RunConfig config = valid_t5();
  config.model.num_layers = 3;
  const ResolvedRun equal = resolve(config);
  EXPECT_EQ(equal.shape.num_layers, 6);
  EXPECT_EQ(equal.shape.encoder_layers, 3);
  EXPECT_EQ(equal.config.data.decoder_seq_length, config.data.seq_length / 4);
  config.model.decoder_num_layers = 2;
  EXPECT_EQ(resolve(config).shape.num_layers, 5);
}

TEST(Resolve, NamesWhatAT5DoesNotHaveAndWhatItAloneHas) {
  const std::vector<Violation> of_t5s = {
      {"model.position_embedding_type", [](RunConfig& c) { c.model.position_embedding_type = "rope"; }},
      {"model.num_query_groups", [](RunConfig& c) { c.model.num_query_groups = 1; }},
      {"model.apply_residual_connection_post_layernorm",
       [](RunConfig& c) { c.model.apply_residual_connection_post_layernorm = true; }},
      {"model.relative_attention_num_buckets", [](RunConfig& c) { c.model.relative_attention_num_buckets = 3; }},
      {"model.relative_attention_max_distance", [](RunConfig& c) { c.model.relative_attention_max_distance = 16; }},
      {"model.decoder_num_layers", [](RunConfig& c) { c.model.decoder_num_layers = -1; }},
      {"data.decoder_seq_length", [](RunConfig& c) { c.data.decoder_seq_length = -1; }},
      {"data.decoder_seq_length",
       [](RunConfig& c) {
         c.data.decoder_seq_length = 31;
         c.parallel.tp = c.parallel.world_size = 2;
         c.parallel.sp = true;
       }},
      {"parallel.pipeline_split_rank must be below parallel.pp",
       [](RunConfig& c) {
         c.parallel.pp = c.parallel.world_size = 2;
         c.parallel.pipeline_split_rank = 2;
       }},
      {"the encoder's layers",
       [](RunConfig& c) {
         c.parallel.pp = c.parallel.world_size = 4;
         c.parallel.pipeline_split_rank = 3;
       }},
      {"layers must be split in one way",
       [](RunConfig& c) {
         c.parallel.pp = c.parallel.world_size = 2;
         c.parallel.vpp = 2;
         c.parallel.pipeline_split_rank = 1;
       }},
      {"lengths that the options say",
       [](RunConfig& c) {
         c.parallel.pp = c.parallel.world_size = 2;
         c.parallel.variable_seq_lengths = true;
       }},
  };
  for (const auto& [named, make] : of_t5s) {
    RunConfig config = valid_t5();
    make(config);
    EXPECT_THAT(refusal_of(config), HasSubstr(named));
  }
  const std::vector<Violation> of_gpts = {
      {"model.position_embedding_type", [](RunConfig& c) { c.model.position_embedding_type = "relative"; }},
      {"model.decoder_num_layers", [](RunConfig& c) { c.model.decoder_num_layers = 2; }},
      {"data.decoder_seq_length", [](RunConfig& c) { c.data.decoder_seq_length = 8; }},
      {"parallel.pipeline_split_rank", [](RunConfig& c) { c.parallel.pipeline_split_rank = 1; }}};
  for (const auto& [named, make] : of_gpts) {
    RunConfig config = valid();
    make(config);
    EXPECT_THAT(refusal_of(config), HasSubstr(named));
  }
}

TEST(Resolve, SaysWhatWouldBeRight) {
  const auto fix_after = [](auto make) {
    RunConfig config = valid();
    make(config);
    return refusal_of(config);
  };
  EXPECT_EQ(fix_after([](RunConfig& c) { c.train.micro_batch_size = 0; }),
            "train.micro_batch_size must be from 1 to 1073741824.\n  got:  0\n"
            "  fix:  --train.micro_batch_size 1 (the default)");
  EXPECT_THAT(fix_after([](RunConfig& c) { c.model.num_layers = 5000; }),
              HasSubstr("got:  5000\n  fix:  --model.num_layers 4096 (the largest)"));
  EXPECT_THAT(fix_after([](RunConfig& c) { c.train.dtype = "fp23"; }), HasSubstr("fix:  --train.dtype fp32"));
  EXPECT_THAT(fix_after([](RunConfig& c) { c.parallel.backend = "mpi"; }),
              HasSubstr("fix:  --parallel.backend auto (the default)"));
  EXPECT_THAT(fix_after([](RunConfig& c) { c.model.hidden_size = 255; }), HasSubstr("fix:  --model.hidden_size 256"));
  EXPECT_THAT(fix_after([](RunConfig& c) { c.model.hidden_dropout = 1; }),
              HasSubstr("fix:  --model.hidden_dropout 0.1 (the default)"));
}

TEST(Resolve, ProposesAValueOfAListThatIsEmptyByDefault) {
  RunConfig config = valid();
  config.log.fields = {"nope"};
  const std::string message = broken_rules(config), head = "fix:  --log.fields ";
  const std::size_t at = message.find(head);
  ASSERT_NE(at, std::string::npos) << message;
  config.log.fields = {message.substr(at + head.size())};
  EXPECT_EQ(broken_rules(config), "");
}

TEST(Resolve, RefusesSamplesOfTwoKindsAtOnce) {
  const auto error_after = [](const auto& change) {
    RunConfig config = valid();
    change(config);
    return refusal_of(config);
  };
  EXPECT_EQ(error_after([](RunConfig& c) { c.data.packed = c.data.sft = true; }), "no error");
  EXPECT_THAT(error_after([](RunConfig& c) { c.data.packed = c.data.fim_data = true; }), HasSubstr("data.fim_data"));
  EXPECT_THAT(error_after([](RunConfig& c) { c.data.sft = c.data.eod_mask_loss = true; }),
              HasSubstr("data.packed and data.sft"));
  EXPECT_THAT(error_after([](RunConfig& c) { c.fim.rate = 1.5; }), HasSubstr("fim.rate"));
  EXPECT_THAT(error_after([](RunConfig& c) { c.data.prefetch = -1; }), HasSubstr("data.prefetch"));
}

TEST(Resolve, TakesTimeoutsThatAClockCanCount) {
  RunConfig config = valid();
  for (const double good : {1e-3, 600.0, 1e7}) {
    config.parallel.timeout_s = good;
    EXPECT_EQ(refusal_of(config), "no error") << good;
  }
  for (const double bad : {0.0, 1e-4, 1.1e7, 1e300}) {
    config.parallel.timeout_s = bad;
    EXPECT_THAT(refusal_of(config), HasSubstr("parallel.timeout_s must be from 0.001 to 1e+07")) << bad;
  }
}

TEST(Resolve, MeasuresTimelinesOnEveryDevice) {
  for (const char* device : {"cpu", "cuda"}) {
    RunConfig config = valid();
    config.parallel.device = device;
    config.log.trace = "trace.json";
    config.log.profile = true;
    EXPECT_EQ(broken_rules(config), "") << device;
  }
}

TEST(Resolve, AsksForDataWhereTheJobReadsIt) {
  EXPECT_THAT(refusal_of(valid(), {.needs_data = true}), HasSubstr("data.data_path"));
  EXPECT_THAT(refusal_of(valid(), {.needs_data = true}), HasSubstr("data.tokenizer"));
  RunConfig config = valid();
  config.data.data_path = {"prefix"};
  config.data.tokenizer = "tokenizer.json";
  EXPECT_EQ(refusal_of(config, {.needs_data = true}), "no error");
  RunConfig drawn = valid();
  drawn.data.mock_data = true;
  EXPECT_EQ(refusal_of(drawn, {.needs_data = true}), "no error");
  drawn.model.vocab_size = 2;
  EXPECT_THAT(refusal_of(drawn, {.needs_data = true}), HasSubstr("model.vocab_size of at least 3"));
  drawn.data.tokenizer_type = "BertWordPieceCase";
  EXPECT_THAT(refusal_of(drawn, {.needs_data = true}), HasSubstr("data.tokenizer_type is that of data.tokenizer"));
}

// Every integer at its ends: no overflow in what is derived (run under UBSan too).
TEST(Resolve, RefusesTheEndsOfEveryIntegerWithoutOverflow) {
  constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min(),
                         kMax = std::numeric_limits<std::int64_t>::max();
  const auto options_of = [](RunConfig& c) {
    return std::vector<std::int64_t*>{&c.model.num_layers,
                                      &c.model.hidden_size,
                                      &c.model.num_attention_heads,
                                      &c.model.ffn_hidden_size,
                                      &c.model.max_position_embeddings,
                                      &c.model.vocab_size,
                                      &c.model.make_vocab_size_divisible_by,
                                      &c.data.seq_length,
                                      &c.parallel.layers_per_virtual_stage,
                                      &c.parallel.first_stage_layers,
                                      &c.parallel.last_stage_layers,
                                      &c.train.recompute_num_layers,
                                      &c.schedule.lr_decay_samples,
                                      &c.schedule.lr_warmup_samples,
                                      &c.train.train_iters,
                                      &c.train.micro_batch_size,
                                      &c.train.global_batch_size};
  };
  RunConfig probe = valid();
  const std::size_t count = options_of(probe).size();
  for (std::size_t i = 0; i < count; ++i)
    for (const std::int64_t end : {kMin, kMax}) {
      RunConfig config = valid();
      config.schedule.lr_warmup_fraction = 0.5;
      *options_of(config)[i] = end;
      EXPECT_NE(refusal_of(config), "no error") << i;
    }
}

}  // namespace
}  // namespace megatron::plan
