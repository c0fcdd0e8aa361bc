#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/config/megatron/flag_table.h"
#include "megatron/config/megatron/python_names.h"
#include "megatron/config/megatron/saved_arguments.h"

// Arguments as Megatron-LM's validate_args() leaves them in a checkpoint, by hand.
namespace megatron::config {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using Saved = std::vector<SavedArgument>;

SavedArgument truth(const std::string& name, bool value) { return {.name = name, .is_truth = true, .truth = value}; }
SavedArgument value(const std::string& name, const std::string& text) { return {.name = name, .values = {text}}; }

/// Of a run of 100 steps of 16 samples, with what is derived.
Saved small(const Saved& more = {}) {
  Saved args = {value("num_layers", "12"),
                value("encoder_num_layers", "12"),
                value("hidden_size", "768"),
                value("num_attention_heads", "12"),
                value("kv_channels", "64"),
                value("ffn_hidden_size", "3072"),
                value("max_position_embeddings", "1024"),
                value("seq_length", "1024"),
                value("encoder_seq_length", "1024"),
                value("micro_batch_size", "4"),
                value("global_batch_size", "16"),
                value("train_iters", "100"),
                value("lr", "0.0001"),
                value("weight_decay", "0.1"),
                value("start_weight_decay", "0.1"),
                value("end_weight_decay", "0.1"),
                value("world_size", "8"),
                value("tensor_model_parallel_size", "2"),
                value("pipeline_model_parallel_size", "4"),
                value("expert_tensor_parallel_size", "2"),
                value("save", "/checkpoints"),
                value("tensorboard_dir", "/logs"),
                truth("add_bias_linear", true),
                truth("overlap_param_gather", true)};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}
RunConfig recipe(const Saved& args, SavedShare share = SavedShare::Run) {
  return saved_recipe("pretrain_gpt", args, "common.pt", share, "--weights-only");
}
std::string error_of(const Saved& args, SavedShare share = SavedShare::Run) {
  try {
    recipe(args, share);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(SavedArguments, AreReadAsACommandLineWithoutPathsAndLayout) {
  const RunConfig run = recipe(small({truth("bias_gelu_fusion", false),
                                      truth("add_qkv_bias", true),
                                      value("split", "9,1,0"),
                                      truth("bf16", true),
                                      value("main_grads_dtype", "fp32"),
                                      truth("check_for_nan_in_loss_and_grad", false),
                                      {.name = "window_size", .values = {"127", "0"}},
                                      {.name = "data_path", .values = {"0.3", "a", "0.7", "b"}}}));
  EXPECT_EQ(run.model.activation, "gelu");
  EXPECT_TRUE(run.model.add_qkv_bias && run.model.add_bias_linear);
  EXPECT_EQ(run.model.sliding_window, 128);
  EXPECT_EQ(run.data.data_path, (std::vector<std::string>{"0.3", "a", "0.7", "b"}));
  EXPECT_EQ(run.train.dtype, "bf16");
  EXPECT_FALSE(run.train.exit_on_nan);
  EXPECT_EQ(run.optimizer.weight_decay, 0.1);
  EXPECT_FALSE(run.optimizer.overlap_param_gather);
  EXPECT_EQ(run.parallel.tp * run.parallel.pp, 1);
  EXPECT_EQ(run.checkpoint.save + run.train.out + run.log.tensorboard_dir, RunConfig().train.out);
}

TEST(SavedArguments, HaveLengthsInSamplesAndInSteps) {
  const RunConfig run =
      recipe(small({value("train_samples", "1605"), value("lr_decay_samples", "1000"), value("lr_warmup_iters", "5")}));
  EXPECT_EQ(run.train.train_iters, 100);
  EXPECT_EQ(run.data.index_samples, 1605);
  EXPECT_EQ(run.schedule.lr_decay_samples, 1000);
  EXPECT_EQ(run.schedule.lr_warmup_samples, 80);
}

TEST(SavedArguments, KeepTheIterationsThatAreSkipped) {
  const RunConfig run = recipe(small({{.name = "iterations_to_skip", .values = {"12", "13"}}}));
  EXPECT_EQ(run.guard.skip_iterations, (std::vector<std::int64_t>{13, 14}));  // which are counted from 0 there
}

TEST(SavedArguments, KeepTheRecipeOfEightBits) {
  const Saved saved = small({value("fp8", "hybrid"), value("fp8_margin", "1"), value("fp8_amax_history_len", "1024"),
                             value("fp8_amax_compute_algo", "max"), truth("fp8_wgrad", false)});
  const Fp8Config fp8 = recipe(saved).fp8;
  EXPECT_EQ(fp8.format, "hybrid");
  EXPECT_EQ(fp8.margin, 1);
  EXPECT_EQ(fp8.amax_history_len, 1024);
  EXPECT_EQ(fp8.amax_compute_algo, "max");
  EXPECT_FALSE(fp8.wgrad);
  EXPECT_EQ(recipe(small({value("fp8", "e4m3"), value("fp8_recipe", "mxfp8")})).fp8.recipe, "mxfp8");
  EXPECT_THAT(error_of(small({value("fp8", "hybrid"), value("fp8_recipe", "custom")})), HasSubstr("--fp8-recipe"));
}

TEST(SavedArguments, KeepWeightDecayThatGrows) {
  // Both ends are there in any case; one of them may be what --weight-decay says.
  const Saved saved = small({value("weight_decay_incr_style", "linear")});
  EXPECT_EQ(recipe(saved).schedule.weight_decay_incr_style, "linear");
  EXPECT_EQ(recipe(saved).schedule.start_weight_decay, 0.1);
  EXPECT_EQ(recipe(saved).schedule.end_weight_decay, 0.1);
  EXPECT_EQ(recipe(saved).schedule.weight_decay_incr_samples, 1600);
  EXPECT_EQ(recipe(small({value("weight_decay_incr_style", "constant")})).optimizer.weight_decay, 0.1);
}

TEST(SavedArguments, NameWhatIsNotHereWhereItCounts) {
  const auto of_network = {value("glu_linear_offset", "1.0"), truth("enable_mhc_connections", true)};
  for (const SavedArgument& argument : of_network)
    for (const SavedShare share : {SavedShare::Network, SavedShare::Run}) {
      std::string flag = "--" + argument.name;
      for (char& letter : flag) letter = letter == '_' ? '-' : letter;
      EXPECT_THAT(error_of(small({argument}), share), AllOf(HasSubstr("common.pt"), HasSubstr(flag))) << argument.name;
    }
  for (const SavedArgument& argument :
       {value("fp8_quantizer_factory", "a.b"), truth("qk_clip", true), value("optimizer", "soap")}) {
    EXPECT_EQ(error_of(small({argument}), SavedShare::Network), "") << argument.name;
    EXPECT_THAT(error_of(small({argument})), HasSubstr("fix:  --weights-only")) << argument.name;
  }
  for (const SavedArgument& argument :
       {value("context_parallel_size", "2"), truth("use_megatron_fsdp", true), value("ckpt_format", "zarr"),
        value("a_name_of_another_version", "1"), truth("qk_l2_norm", false), value("num_experts", "0")})
    EXPECT_EQ(error_of(small({argument})), "") << argument.name;
}

TEST(SavedArguments, CountAnExpertsCapacityInWholeSequences) {
  Saved experts = small({value("num_experts", "8"), value("moe_expert_capacity_factor", "1.5")});
  for (SavedArgument& argument : experts)
    if (argument.name == "micro_batch_size") argument.values = {"1"};
  const auto with = [&](const SavedArgument& argument) {
    Saved args = experts;
    args.push_back(argument);
    return args;
  };
  const Saved split = with(truth("sequence_parallel", true)), shared = with(value("context_parallel_size", "2"));
  EXPECT_EQ(error_of(experts), "");
  EXPECT_EQ(error_of(with(truth("sequence_parallel", false))), "");
  EXPECT_EQ(error_of(with(value("context_parallel_size", "1"))), "");
  EXPECT_THAT(error_of(split), AllOf(HasSubstr("sequence_parallel must be False"), HasSubstr("fix:  --weights-only")));
  EXPECT_THAT(error_of(shared), HasSubstr("context_parallel_size must be 1"));
  for (const Saved& args : {split, shared}) EXPECT_EQ(error_of(args, SavedShare::Network), "");
}

TEST(SavedArguments, OfStagesAreTheirDerivedValues) {
  const Saved args = {value("pipeline_model_parallel_size", "4"), value("virtual_pipeline_model_parallel_size", "3"),
                      value("num_layers_per_virtual_pipeline_stage", "1"),
                      value("decoder_first_pipeline_num_layers", "2")};
  const ParallelConfig parallel = recipe(args, SavedShare::Layout).parallel;
  EXPECT_EQ(std::pair(parallel.pp, parallel.vpp), std::pair(4, 3));
  EXPECT_EQ(std::pair(parallel.layers_per_virtual_stage, parallel.first_stage_layers), std::pair(0L, 2L));
}

TEST(SavedArguments, ThatAreNoValuesOfTheirFlagAreRefused) {
  EXPECT_THAT(error_of(small({value("hidden_dropout", "nan")})), AllOf(HasSubstr("common.pt"), HasSubstr("a number")));
  EXPECT_THAT(error_of(small({truth("seed", true)})), HasSubstr("seed must have a value"));
  EXPECT_THAT(error_of(small({value("swiglu", "1")})), HasSubstr("swiglu must be True or False"));
  EXPECT_THAT(error_of(small({value("normalization", "LayerNorm1p")})), HasSubstr("must be one of"));
  EXPECT_THAT(error_of(small({{.name = "data_path", .values = {"--load"}}})), HasSubstr("no options"));
  EXPECT_THAT(error_of(small({value("lr", "0.1 --bf16")})), Not(testing::IsEmpty()));
  EXPECT_THAT(error_of(small({value("split", "9\n1")})), HasSubstr("visible characters"));
  EXPECT_EQ(error_of(small({value("one_logger_run_name", "a\nb"), value("wandb_exp_name", "a\x1b[0m")})), "");
  EXPECT_THAT(error_of(small({{.name = "data_path", .values = std::vector<std::string>(70000, "a")}})),
              HasSubstr("at most 65536 values"));
  EXPECT_THAT(error_of({}, SavedShare::Network), HasSubstr("--num-layers must be given"));
}

TEST(PythonNames, LeadToTheFlagsThatSetThem) {
  const auto flag = [](const char* name) {
    const auto found = flag_of_python_name(name);
    return found ? found->text : "";
  };
  EXPECT_EQ(flag("num_layers"), "num-layers");
  EXPECT_EQ(flag("bias_gelu_fusion"), "no-bias-gelu-fusion");
  EXPECT_EQ(flag("pad_vocab_size"), "no-pad-vocab-size");
  EXPECT_EQ(flag("add_bias_linear"), "");
  EXPECT_EQ(yaml_key("add_bias_linear")->text, "disable-bias-linear");
}

}  // namespace
}  // namespace megatron::config
