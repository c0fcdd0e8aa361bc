#include "megatron/plan/mend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "megatron/base/error.h"
#include "megatron/config/options.h"
#include "megatron/config/value.h"
#include "megatron/plan/rules.h"

namespace megatron::plan {
namespace {

using config::RunConfig;
using testing::ElementsAre;

std::string error_of(const RunConfig& config, const Facts& facts = {}) {
  try {
    resolve(config, facts);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

std::set<std::string> rules_of(const std::string& message) {
  std::set<std::string> rules;
  for (const Violation& violation : violations_in(message)) rules.insert(violation.rule);
  return rules;
}

std::vector<std::string> words_of(const std::string& line) {
  std::vector<std::string> words;
  std::istringstream stream(line);
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

/// `config` after the words of a command line, which its parser takes.
RunConfig with_words(RunConfig config, const std::vector<std::string>& words) {
  const auto rest = config::parse_words(config::fields_of(config), words, "");
  if (!rest.empty()) throw ConfigError(rule_got_fix("options alone.", rest[0], "leave it out"));
  return config;
}

/// A command line with what a fix says, by the job's own parser.
RunConfig amended(RunConfig config, const Amendment& amendment) {
  config = with_words(std::move(config), amendment.words);
  RunConfig defaults;
  const config::Fields usual = config::fields_of(defaults);
  for (const std::string& flag : amendment.left_out) {
    const std::string name = config::normalized(flag.substr(2));
    const config::Fields fields = config::fields_of(config);
    bool found = false;
    for (std::size_t i = 0; i < fields.fields.size(); ++i) {
      const config::Field& field = fields.fields[i];
      const bool is_it =
          config::normalized(field.path) == name || std::ranges::any_of(field.aliases, [&](const std::string& alias) {
            return config::normalized(alias) == name;
          });
      if (!is_it) continue;
      found = true;
      std::visit([&](auto* to) { *to = *std::get<decltype(to)>(usual.fields[i].value); }, field.value);
    }
    EXPECT_TRUE(found) << flag;
  }
  return config;
}

RunConfig small() {
  RunConfig config;
  config.model.num_layers = 4;
  config.model.hidden_size = 64;
  config.model.num_attention_heads = 4;
  config.model.vocab_size = 320;
  config.data.seq_length = 32;
  config.train.micro_batch_size = 4;
  config.train.global_batch_size = 8;
  config.train.train_iters = 30;
  return config;
}

RunConfig small_t5() {
  RunConfig config = small();
  config.model.architecture = "t5";
  config.model.position_embedding_type = "relative";
  return config;
}

struct Recipe {
  const char* name;
  RunConfig config;
  std::vector<const char*> wrong;  ///< command lines that break rules
};

const std::vector<Recipe>& recipes() {
  static const std::vector<Recipe> all = {
      {"gpt",
       small(),
       {
           // Layouts.
           "--tp 3",
           "--tp 3 --world-size 3",
           "--tp 8 --world-size 8",
           "--tp 64 --world-size 64",
           "--pp 3",
           "--pp 3 --world-size 3",
           "--pp 8 --world-size 8",
           "--tp 0",
           "--pp 0",
           "--vpp 0",
           "--dp -1",
           "--tp -4",
           "--world-size 100000",
           "--world-size -1",
           "--world-size 3",
           "--world-size 5",
           "--world-size 6 --tp 2",
           "--world-size 7 --tp 2",
           "--world-size 2 --dp 2 --tp 2",
           "--world-size 8 --dp 3",
           "--dp 4",
           "--tp 99999 --world-size 99999",
           "--pp 2000 --world-size 2000",
           "--vpp 2",
           "--vpp 2000",
           "--pp 2 --world-size 2 --vpp 3",
           "--pp 2 --world-size 2 --vpp 8",
           "--pp 4 --world-size 4 --vpp 2",
           "--num-layers 5 --pp 2 --world-size 2",
           "--num-layers 3 --pp 4 --world-size 4",
           "--num-layers 7 --pp 2 --vpp 2 --world-size 2",
           "--sp --tp 4 --world-size 4 --seq-length 30",
           "--sp --tp 3 --world-size 3",
           "--pp 2 --world-size 2 --num-layers-per-virtual-pipeline-stage 3",
           "--pp 2 --world-size 2 --num-layers-per-virtual-pipeline-stage 1 --vpp 2",
           "--decoder-first-pipeline-num-layers 3",
           "--pp 2 --world-size 2 --decoder-first-pipeline-num-layers 9",
           "--pp 3 --world-size 3 --decoder-first-pipeline-num-layers 1",
           "--pp 3 --world-size 3 --micro-batch-size 1 --decoder-first-pipeline-num-layers 1",
           "--pp 2 --world-size 2 --decoder-last-pipeline-num-layers 5",
           "--pp 2 --world-size 2 --account-for-embedding-in-pipeline-split",
           "--pp 2 --world-size 2 --account-for-loss-in-pipeline-split",
           "--pp 4 --world-size 4 --standalone-embedding-stage",
           "--pp 2 --world-size 2 --standalone-embedding-stage --account-for-loss-in-pipeline-split",
           "--pp 2 --world-size 2 --pp-layout Ettttt|L",
           "--pp 2 --world-size 2 --pp-layout Ett|x|ttL",
           "--pp 2 --world-size 2 --pp-layout Ett||ttL",
           "--pp 2 --world-size 2 --pp-layout tt|ttL",
           "--pp 2 --world-size 2 --pp-layout Et|t|ttL",
           "--pp-layout Ett|ttL",
           "--pp-layout nonsense",
           "--pp 2 --world-size 2 --pp-layout Ett|ttL --standalone-embedding-stage",
           "--pp 4 --world-size 4 --pp-layout balanced --num-layers 1",
           // Schedules.
           "--schedule nonsense",
           "--schedule 1f1b",
           "--schedule interleaved --pp 2 --world-size 2",
           "--schedule zb-v --pp 2 --world-size 2",
           "--schedule zb-h1 --pp 2 --vpp 2 --world-size 2",
           "--schedule dualpipev --pp 2 --world-size 2",
           "--schedule dualpipev --pp 2 --vpp 2 --world-size 2 --micro-batch-size 1 --global-batch-size 3",
           "--schedule zb_h1 --pp 2 --world-size 2",
           "--schedule gpipe --pp 2 --vpp 2 --world-size 2",
           "--parallel.microbatch_group_size 4",
           "--parallel.microbatch_group_size 1 --pp 2 --vpp 2 --world-size 2",
           "--parallel.microbatch_group_size -1",
           "--parallel.pp_memory_limit 100",
           "--parallel.pp_memory_limit 100 --schedule auto --pp 2 --world-size 2",
           "--parallel.pp_memory_limit -1",
           "--parallel.pp_communication fast",
           "--variable-seq-lengths",
           "--pipeline-model-parallel-split-rank 1",
           // How ranks run.
           "--launch thread",
           "--distributed-backend mpi",
           "--parallel.backend nccl",
           "--device gpu",
           "--device cuda --log.trace t.txt",
           "--parallel.backend local --launch processes",
           "--threads-per-rank -1",
           "--parallel.timeout_s 0",
           "--parallel.timeout_s 1e9",
           // The model.
           "--num-layers 0",
           "--num-layers 5000",
           "--hidden-size 65",
           "--hidden-size 0",
           "--hidden-size -8",
           "--hidden-size 9223372036854775807",
           "--hidden-size 65535 --num-attention-heads 7",
           "--num-attention-heads 0",
           "--num-attention-heads 7",
           "--num-attention-heads 100000",
           "--ffn-hidden-size -1",
           "--ffn-hidden-size 255 --tp 2 --world-size 2",
           "--ffn-hidden-size 300000",
           "--kv-channels -1",
           "--kv-channels 60000",
           "--num-query-groups 3",
           "--num-query-groups 8",
           "--num-query-groups -1",
           "--max-position-embeddings 16",
           "--max-position-embeddings -1",
           "--max-position-embeddings 99999999",
           "--vocab-size 0",
           "--vocab-size -1",
           "--vocab-size 99999999",
           "--make-vocab-size-divisible-by 0",
           "--model.architecture gtp",
           "--model.decoder_num_layers 2",
           "--model.head classes",
           "--model.head class",
           "--model.num_classes -1",
           "--model.num_tokentypes -1",
           "--position-embedding-type rop",
           "--position-embedding-type relative",
           "--rotary-base 0",
           "--rotary-percent 0",
           "--rotary-percent 2",
           "--position-embedding-type rope --rotary-percent 0.05",
           "--position-embedding-type rope --kv-channels 15",
           "--rotary-interleaved",
           "--model.rope_scaling_factor 0",
           "--model.rope_scaling_factor 8",
           "--model.rope_low_freq_factor 5",
           "--position-embedding-type rope --model.rope_scaling_factor 8 --model.rope_high_freq_factor 1",
           "--model.rope_original_positions 0",
           "--position-embedding-type rope --model.rope_scaling_factor 8 --model.rope_scaling_type longrope",
           "--position-embedding-type rope --model.longrope_attention_factor -1",
           "--model.parallel_shared_norm",
           "--position-embedding-type rope --model.position_offset 2",
           "--model.position_offset -1",
           "--model.embedding_layernorm --model.parallel_residual",
           "--model.embedding_layernorm --apply-residual-connection-post-layernorm",
           "--model.relative_attention_num_buckets 2",
           "--model.relative_attention_max_distance 3",
           "--model.layernorm_epsilon 0",
           "--normalization rmsnorm",
           "--model.activation relu2",
           "--init-method-std -1",
           "--use-mup --mup-base-hidden-size -1",
           "--use-mup --mup-output-mult 0 --mup-embedding-mult -1",
           "--use-mup --mup-base-head-dim -1 --mup-attn-scale-power 9",
           "--hidden-dropout 1",
           "--attention-dropout -0.5",
           // Data and samples.
           "--seq-length 0",
           "--seq-length 99999999",
           "--split 1,x",
           "--split 0,0",
           "--decoder-seq-length 8",
           "--data.prefetch -1",
           "--vocab-extra-ids -1",
           "--data.mask_prob 2",
           "--data.short_seq_prob -1",
           "--data.packed --data.fim_data",
           "--mock-data --data.packed --eod-mask-loss",
           "--mock-data --full-validation --eval-interval 5",
           "--data.packed --reset-position-ids",
           "--data.sft --eod-mask-loss --reset-attention-mask",
           "--fim.rate 2",
           "--fim.spm_rate -1",
           "--fim.fragment_rate 7",
           // Optimizer, learning rate, batches.
           "--optimizer adamw",
           "--adam-beta1 1",
           "--adam-beta2 -1",
           "--optimizer.sgd_momentum 1",
           "--adam-eps 0",
           "--optimizer.lion_beta1 2",
           "--weight-decay -1",
           "--clip-grad -1",
           "--optimizer.clip_norm l0",
           "--optimizer.clip_norm max",
           "--optimizer.bucket_size -1",
           "--optimizer.lr_mult embedding.*",
           "--optimizer.lr_mult nosuch=2",
           "--optimizer.wd_mult *=-1",
           "--optimizer.grad_dtype bf16",
           "--optimizer.grad_dtype int8",
           "--optimizer.state_dtype fp8",
           "--optimizer.stochastic_rounding",
           "--fp8-format e5m2",
           "--fp8-format hybrid --fp8-recipe custom --fp8-amax-history-len 0",
           "--fp8-format hybrid --fp8-margin -1 --fp8-amax-compute-algo mean",
           "--fp8-format e4m3 --lora.rank 4",
           "--fp8-format e4m3 --fp8-recipe blockwise --tp 2 --world-size 2",
           "--fp8-format e4m3 --fp8-recipe blockwise --cp 2 --world-size 2",
           "--fp8-format e4m3 --fp8-recipe mxfp8 --tp 2 --world-size 2 --ffn-hidden-size 80",
           "--fp8-format hybrid --fp8-recipe mxfp8 --device cuda",
           "--fp8-format hybrid --tp 2 --world-size 2 --num-query-groups 1",
           "--loss-scale 128",
           "--loss-scale -1",
           "--train.dtype fp16 --min-loss-scale 1e30",
           "--train.dtype fp16 --initial-loss-scale 0.5",
           "--hysteresis 0",
           "--loss-scale-window 0",
           "--data-parallel-sharding-strategy optim_grads",
           "--data-parallel-sharding-strategy optim_grads_params",
           "--data-parallel-sharding-strategy zero3",
           "--use-distributed-optimizer --data-parallel-sharding-strategy no_shard",
           "--lr -1",
           "--lr 1e-4 --min-lr 1e-3",
           "--min-lr -1",
           "--lr 1e-4 --lr-warmup-init 1",
           "--lr -1 --min-lr 1e-5",
           "--decoupled-lr -1",
           "--decoupled-lr 1e-5 --decoupled-min-lr 1e-4",
           "--min-lr 1e-5 --decoupled-lr 1e-6",
           "--lr-decay-style cosin",
           "--lr-decay-style WSD",
           "--lr-decay-style WSD --lr-wsd-decay-samples 99999",
           "--lr-decay-style WSD --lr-wsd-decay-samples 24 --lr-wsd-decay-style sharp",
           "--weight-decay-incr-style quadratic",
           "--weight-decay-incr-style linear --start-weight-decay -1",
           "--weight-decay-incr-style linear --start-weight-decay 1 --end-weight-decay 0.1",
           "--weight-decay-incr-style linear --schedule.weight_decay_incr_samples -1",
           "--lr-warmup-samples 99999",
           "--lr-warmup-fraction 1",
           "--lr-warmup-fraction 2",
           "--lr-warmup-samples -1",
           "--lr-decay-samples -1",
           "--rampup-batch-size 4",
           "--rampup-batch-size 3,4,100",
           "--rampup-batch-size 0,4,100",
           "--rampup-batch-size 4,3,100",
           "--rampup-batch-size 4,4,999999999999999",
           "--step-batch-size-schedule 0:8,x",
           "--step-batch-size-schedule 500K:8",
           "--step-batch-size-schedule 0:8,1K:16 --rampup-batch-size 4,4,100",
           "--step-batch-size-schedule 0:8,1K:16 --global-batch-size 24",
           "--step-batch-size-schedule 0:8,100K:15 --micro-batch-size 2 --global-batch-size 0",
           "--micro-batch-size 0",
           "--micro-batch-size 3",
           "--micro-batch-size 16777216 --global-batch-size 0",
           "--global-batch-size 6",
           "--global-batch-size -8",
           "--global-batch-size 9",
           "--global-batch-size 4 --world-size 2",
           "--global-batch-size 4000000000",
           "--micro-batch-size 1 --global-batch-size 9000000 --pp 2 --world-size 2",
           // The run.
           "--train.out=",
           "--train-iters -1",
           "--train-iters 99999999999",
           "--exit-interval -1",
           "--exit-duration-in-mins -2",
           "--eval-interval -1",
           "--eval-interval 5 --eval-iters 0",
           "--eval-global-batch-size 9 --micro-batch-size 2 --global-batch-size 8",
           "--eval-global-batch-size -2",
           "--seed 4294967296",
           "--train.dtype fp23",
           "--label-smoothing 1",
           "--train.loss_chunk_tokens -1",
           "--rerun-interval 2 --device cuda",
           "--recompute-granularity some",
           "--recompute-method rows",
           "--recompute-num-layers 2",
           "--recompute-granularity full --recompute-method block",
           "--recompute-granularity selective --recompute-modules moe",
           "--recompute-granularity selective --recompute-modules=",
           "--distribute-saved-activations",
           "--train.kernels sse",
           "--matmul-precision low",
           "--train.dtype bf16 --matmul-precision high",
           "--save-interval -2",
           "--checkpoint.keep_last -1",
           "--checkpoint.keep_every -1",
           "--finetune",
           "--no-load-optim",
           "--ckpt-step 5",
           "--load a --ckpt-step -5",
           "--override-ckpt-iteration 5",
           "--load a --override-ckpt-iteration -5",
           "--load a --finetune --override-ckpt-iteration 5",
           "--dataloader-type external",
           "--dataloader-type cyclic --data.cyclic_batch 0",
           "--embedding-init-method-std -1",
           "--eval-interval 5 --start-eval-at-iter -1",
           "--log-interval 0",
           "--log.progress maybe",
           "--log.trace trace.txt",
           // Several at once.
           "--hidden-size 65 --world-size 4 --tp 3 --model.activation relu2",
           "--lr -1 --tp 3 --world-size 3",
           "--lr -1 --min-lr 5e-4",
           "--tp 3 --pp 3 --world-size 9",
           "--micro-batch-size 0 --hidden-size 0 --num-attention-heads 0",
           "--pp 3 --world-size 6 --tp 2 --global-batch-size 7",
           "--sp --tp 3 --world-size 3 --ffn-hidden-size 100",
       }},
      {"t5",
       small_t5(),
       {
           "--position-embedding-type rope",
           "--num-query-groups 2",
           "--add-qkv-bias --disable-bias-linear",
           "--apply-residual-connection-post-layernorm",
           "--model.head classes --model.num_classes 3",
           "--decoder-seq-length -1",
           "--variable-seq-lengths --pp 2 --world-size 2",
           "--data.packed",
           "--data.sft",
           "--reset-position-ids",
           "--pp 2 --world-size 2 --pipeline-model-parallel-split-rank 2",
           // NOLINTNEXTLINE(bugprone-suspicious-missing-comma)
           "--pp 3 --world-size 3 --micro-batch-size 1 --global-batch-size 4 --pipeline-model-parallel-split-rank 1 "
           "--num-layers 3",
           "--pp 2 --world-size 2 --pipeline-model-parallel-split-rank 1 --vpp 2",
           "--pp 16 --world-size 16 --pp-layout balanced",
           "--tp 3 --world-size 3",
           "--sp --tp 2 --world-size 2 --decoder-seq-length 7",
           "--model.decoder_num_layers -1",
           "--pp 3 --world-size 3",
       }},
  };
  return all;
}

/// Options of Megatron-LM's that stand for others: resolve() sees what they set.
std::vector<std::string> expanded(const std::string& line) {
  std::vector<std::string> words = words_of(line);
  std::ranges::replace(words, std::string("--disable-bias-linear"), std::string("--no-model.add-bias-linear"));
  return words;
}

TEST(Fixes, OfEachRuleWorkAloneAndTogether) {
  int rules = 0;
  for (const Recipe& recipe : recipes())
    for (const char* line : recipe.wrong) {
      SCOPED_TRACE(testing::Message() << recipe.name << " " << line);
      RunConfig config;
      try {
        config = with_words(recipe.config, expanded(line));
      } catch (const ConfigError& error) {
        ADD_FAILURE() << error.what();
        continue;
      }
      const std::string message = error_of(config);
      EXPECT_NE(message, "");
      const std::set<std::string> broken = rules_of(message);
      RunConfig together = config;
      for (const Violation& violation : violations_in(message)) {
        ++rules;
        SCOPED_TRACE(violation.rule + "\n  got: " + violation.got + "\n  fix: " + violation.fix);
        const Amendment amendment = amendment_of(violation.fix);
        EXPECT_FALSE(amendment.empty());
        try {
          const std::set<std::string> left = rules_of(error_of(amended(config, amendment)));
          EXPECT_FALSE(left.contains(violation.rule));
          EXPECT_TRUE(std::ranges::includes(broken, left)) << "breaks: " << testing::PrintToString(left);
          together = amended(std::move(together), amendment);
        } catch (const ConfigError& error) {
          ADD_FAILURE() << error.what();
        }
      }
      EXPECT_EQ(error_of(together), "");
    }
  std::cout << rules << " broken rules\n";
  EXPECT_GE(rules, 250);
}

TEST(Fixes, FollowTheRanksThatALauncherHasStarted) {
  for (const char* line : {"--tp 3", "--pp 3", "--tp 2 --dp 3", "--global-batch-size 9"}) {
    SCOPED_TRACE(line);
    const Facts facts{.launched_world_size = 4};
    RunConfig config = with_words(small(), words_of(line));
    config.train.global_batch_size = 16;
    if (std::string(line) == "--global-batch-size 9") config.train.global_batch_size = 9;
    const std::string message = error_of(config, facts);
    for (const Violation& violation : violations_in(message)) {
      EXPECT_EQ(violation.fix.find("world-size"), std::string::npos) << message;
      EXPECT_EQ(error_of(amended(config, amendment_of(violation.fix)), facts), "") << message;
    }
  }
}

TEST(Fixes, NameOptionsOfTheJobAlone) {
  RunConfig config = small();
  config.parallel.tp = config.parallel.world_size = 3;
  const Facts facts{.flags = {{"parallel.tp", "tp"}, {"train.micro_batch_size", "batch"}},
                    .complete = [](RunConfig& changed) {
                      changed.parallel.world_size = changed.parallel.tp;
                      changed.train.global_batch_size = changed.train.micro_batch_size;
                    }};
  const std::string message = error_of(config, facts);
  for (const Violation& violation : violations_in(message)) EXPECT_EQ(violation.fix, "--tp 2") << message;
}

TEST(Amendments, AreReadFromTheWordsThatAFixBeginsWith) {
  EXPECT_THAT(amendment_of("--tp 2 or 4").words, ElementsAre("--tp", "2"));
  EXPECT_THAT(amendment_of("--tp 2 --pp 1 (the default), or --x").words, ElementsAre("--tp", "2", "--pp", "1"));
  EXPECT_THAT(amendment_of("--pp-layout \"Et*2|tL\", or balanced").words, ElementsAre("--pp-layout", "Et*2|tL"));
  EXPECT_THAT(amendment_of("leave --sft and --fim-data out, or more").left_out, ElementsAre("--sft", "--fim-data"));
  EXPECT_TRUE(amendment_of("name another folder: --train.out").empty());
  EXPECT_TRUE(amendment_of("leave it out").empty());
}

}  // namespace
}  // namespace megatron::plan
