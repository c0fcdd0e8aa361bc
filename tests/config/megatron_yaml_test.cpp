#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "megatron/base/error.h"
#include "megatron/config/megatron/arguments.h"
#include "megatron/config/megatron/translate.h"
#include "megatron/config/megatron/yaml_file.h"
#include "megatron/config/megatron/yaml_words.h"
#include "megatron/config/options.h"

// What a file of --yaml-cfg means is what the words that are written beside it mean; those were derived by hand from
// Megatron-LM's validate_yaml() and core_transformer_config_from_yaml(), and its reader's rules from YAML 1.1.
namespace megatron::config {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

MegatronTranslation of_yaml(const std::string& text, int ranks = 1, const std::string& more = "") {
  return translate_megatron_arguments("pretrain_gpt", shell_words("--yaml-cfg run.yaml " + more, "test"),
                                      {.world_size = ranks, .yaml = text});
}
std::string recipe_of_yaml(const std::string& text, int ranks = 1) { return save_toml(of_yaml(text, ranks).config); }
std::string recipe_of_words(const std::string& words, int ranks = 1) {
  return save_toml(
      translate_megatron_arguments("pretrain_gpt", shell_words(words, "test"), {.world_size = ranks}).config);
}
std::string error_of(const std::string& text) {
  try {
    of_yaml(text);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

const std::string kSmall = R"(
language_model: {num_layers: 4, hidden_size: 64, num_attention_heads: 4, activation_func: gelu}
max_position_embeddings: 32
seq_length: 32
micro_batch_size: 2
train_iters: 10
lr: 1.e-3
)";
const std::string kSmallWords =
    "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --max-position-embeddings 32 --seq-length 32 "
    "--micro-batch-size 2 --train-iters 10 --lr 1e-3 ";

TEST(MegatronYaml, IsTheWordsThatItStandsFor) {
  // The keys of Megatron-LM's own example, with values that differ from every default.
  const std::string text = R"(# a run
language_model:
  num_layers: 24
  hidden_size: 1024
  num_attention_heads: 16
  num_query_groups: 8
  ffn_hidden_size: null
  kv_channels: 32
  hidden_dropout: 0.0
  attention_dropout: 0.0
  fp32_residual_connection: False
  apply_residual_connection_post_layernorm: True
  layernorm_epsilon: 1.e-6
  layernorm_zero_centered_gamma: True
  add_bias_linear: False
  bias_activation_fusion: False
  add_qkv_bias: True
  gated_linear_unit: False
  activation_func: swiglu
  num_moe_experts: null
  rotary_interleaved: yes
  window_size: [127, 0]
  init_method: null
  init_method_std: 0.01
  masked_softmax_fusion: True
  apply_rope_fusion: False
  recompute_granularity: full
  recompute_method: block
  recompute_num_layers: 2
  fp8: ~
  fp8_margin: 0
  fp8_amax_compute_algo: "most_recent"
  fp8_wgrad: True
  normalization: 'RMSNorm'
  moe_router_load_balancing_type: "aux_loss"
  moe_router_topk: 3
  moe_aux_loss_coeff: 0
  moe_token_dropping: False
model_parallel:
  num_microbatches_with_partial_activation_checkpoints: 1
  tensor_model_parallel_size: 2
  context_parallel_size: 1
  pipeline_model_parallel_size: 2
  virtual_pipeline_model_parallel_size: null
  sequence_parallel: on
  fp16: False
  bf16: True
  params_dtype: null
  tp_comm_bulk_wgrad: False
  overlap_p2p_comm: True
  barrier_with_L1_time: False
  timers: null
micro_batch_size: 2
global_batch_size: 128
rampup_batch_size: [32, 32, 65324160]
add_position_embedding: False
untie_embeddings_and_output_weights: True
position_embedding_type: rope
rotary_percent: 0.5
swiglu: True
group_query_attention: False
max_position_embeddings: 4096
seq_length: 4096
optimizer: adam
lr: 2.5e-4
lr_decay_style: cosine
lr_decay_iters: null
lr_decay_samples: 255126953
lr_warmup_iters: 0
lr_warmup_samples: 81381
adam_beta2: 0.95
min_lr: 2.5e-5
train_samples: 268554688
check_for_nan_in_loss_and_grad: False
split: '99,1,0'
data_path: 0.3 a/b 0.7 c
timing_log_level: 1
eval_interval: 2000
log_loss_scale_to_tensorboard: False
tokenizer_type: GPTSentencePieceTokenizer
tokenizer_model: tok
wandb_project: ''
profile_ranks: [0]
)";
  const std::string words =
      "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --group-query-attention --num-query-groups 8 "
      "--kv-channels 32 --hidden-dropout 0 --attention-dropout 0 --apply-residual-connection-post-layernorm "
      "--apply-layernorm-1p --norm-epsilon 1e-6 --disable-bias-linear --add-qkv-bias --swiglu --rotary-interleaved "
      "--window-size 127,0 "
      "--init-method-std 0.01 --recompute-granularity full --recompute-method block --recompute-num-layers 2 "
      "--num-microbatches-with-partial-activation-checkpoints 1 --normalization RMSNorm --tensor-model-parallel-size 2 "
      "--pipeline-model-parallel-size 2 --sequence-parallel "
      "--bf16 --accumulate-allreduce-grads-in-fp32 --no-barrier-with-level-1-timing --micro-batch-size 2 "
      "--global-batch-size 128 --rampup-batch-size 32 32 65324160 --untie-embeddings-and-output-weights "
      "--position-embedding-type rope --rotary-percent 0.5 --max-position-embeddings 4096 --seq-length 4096 "
      "--lr 2.5e-4 --lr-decay-style cosine --lr-decay-samples 255126953 --lr-warmup-samples 81381 --adam-beta2 0.95 "
      "--min-lr 2.5e-5 --train-samples 268554688 --no-check-for-nan-in-loss-and-grad --split 99,1,0 "
      "--data-path 0.3 a/b 0.7 c --timing-log-level 1 --eval-interval 2000 --no-log-loss-scale-to-tensorboard "
      "--tokenizer-type GPTSentencePieceTokenizer --tokenizer-model tok";
  EXPECT_EQ(recipe_of_yaml(text, 8), recipe_of_words(words, 8));
}

TEST(MegatronYaml, SaysTheActivationInItsOwnWay) {
  const auto with = [](const std::string& activation, const std::string& more = "") {
    std::string text = kSmall;
    text.replace(text.find("activation_func: gelu"), 21, "activation_func: " + activation + more);
    return of_yaml(text).config.model;
  };
  // There this GELU is the exact function, with bias or without; words alone would give its approximation.
  EXPECT_EQ(with("gelu").activation, "gelu");
  EXPECT_EQ(with("gelu", ", bias_activation_fusion: true").activation, "gelu");
  EXPECT_EQ(with("gelu", ", add_bias_linear: false").activation, "gelu");
  EXPECT_EQ(with("squaredrelu").activation, "squared_relu");
  EXPECT_EQ(with("swiglu").activation, "silu");
  EXPECT_TRUE(with("swiglu").gated_linear_unit);
  EXPECT_EQ(with("swiglu").ffn_hidden_size, 128);  // 8/3 x 64 = 170.7, in steps of 64
  EXPECT_EQ(recipe_of_yaml(kSmall + "swiglu: true\n"), recipe_of_words(kSmallWords + "--no-bias-gelu-fusion"));
  EXPECT_THAT(error_of(kSmall + "gated_linear_unit: true"), HasSubstr("must be false but with swiglu"));
  EXPECT_THAT(error_of("lr: 1.0"), HasSubstr("fix:  activation_func: gelu"));
}

TEST(MegatronYaml, SumsGradientsOfBf16InFp32) {
  EXPECT_EQ(of_yaml(kSmall + "bf16: true\ngrad_reduce_in_bf16: true").config.optimizer.grad_dtype, "fp32");
  EXPECT_EQ(of_yaml(kSmall + "fp16: true").config.optimizer.grad_dtype, "fp16");
  EXPECT_EQ(of_yaml(kSmall + "fp16: true\naccumulate_allreduce_grads_in_fp32: true").config.optimizer.grad_dtype,
            "fp32");
}

TEST(MegatronYaml, TakesNoMoreRanksThanThereAre) {
  const std::string text = kSmall + "tensor_model_parallel_size: 8\npipeline_model_parallel_size: 4\n";
  EXPECT_EQ(of_yaml(text, 2).config.parallel.tp, 2);
  EXPECT_EQ(of_yaml(text, 2).config.parallel.pp, 1);
  EXPECT_EQ(of_yaml(text, 16).config.parallel.pp, 2);
}

TEST(MegatronYaml, LeavesOtherWordsAside) {
  const auto run =
      of_yaml(kSmall + "async_tensor_model_parallel_allreduce: true", 1, "--lr 7 --bf16 --train.out runs/a");
  EXPECT_EQ(run.config.schedule.lr, 1e-3);
  EXPECT_EQ(run.config.train.dtype, "fp32");
  EXPECT_THAT(run.own, ElementsAre("--train.out", "runs/a"));
  EXPECT_THAT(ignored_line(run),
              AllOf(HasSubstr("--lr 7"), HasSubstr("--bf16"), HasSubstr("async_tensor_model_parallel_allreduce true")));
  EXPECT_THAT(ignored_line(run), Not(HasSubstr("yaml-cfg")));
  EXPECT_EQ(yaml_file_of({"--yaml-cfg", "a.yaml"}), "a.yaml");
  EXPECT_EQ(yaml_file_of({"--lr", "1"}), "");
}

TEST(MegatronYaml, RefusesByName) {
  const auto error = [](const std::string& line) { return error_of(kSmall + line); };
  EXPECT_THAT(error("hiden_size: 3"),
              AllOf(HasSubstr("run.yaml:8: hiden_size must be an option"), HasSubstr("hidden_size")));
  EXPECT_THAT(error("new_feature: null"), HasSubstr("new_feature must be an option"));
  EXPECT_THAT(error("bf16: 1"), HasSubstr("bf16 must be true or false"));
  EXPECT_THAT(error("seed: true"), HasSubstr("seed must be a number or text"));
  EXPECT_THAT(error("seed: [1, 2]"), HasSubstr("seed must be one value"));
  EXPECT_THAT(error("seed: 0x10"), HasSubstr("--seed takes an integer"));
  EXPECT_THAT(error("hidden_size: 3"), HasSubstr("must be given in one section alone"));
  EXPECT_THAT(error("enable_autocast: true"), HasSubstr("asks for what is not here"));
  EXPECT_THAT(error("init_method: xavier_uniform"), HasSubstr("asks for what is not here"));
  EXPECT_THAT(error("num_moe_experts: 8\nmoe_latent_size: 8\nfp8: hybrid\nfp8_output_proj: true"),
              AllOf(HasSubstr("mixture of experts"), HasSubstr("FP8")));
  EXPECT_THAT(error("data_path: [a, --lr]"), HasSubstr("must have values that are no options"));
  EXPECT_THAT(error("other: {a: 1}"), HasSubstr("sections are language_model and model_parallel"));
  EXPECT_THAT(error("wrong: 1\nalso: 2"), AllOf(HasSubstr("wrong must"), HasSubstr("also must")));  // all at once
}

TEST(YamlFile, IsReadAsYaml11ReadsIt) {
  const auto entries = read_yaml("a: yes\nb: \"yes\"\nc: [1, null, 'x y']\ns: {d: ~}\ne:\n- 1_0\n", "f");
  ASSERT_EQ(entries.size(), 5u);
  EXPECT_EQ(entries[0].values[0].kind, YamlScalar::Kind::Bool);
  EXPECT_TRUE(entries[0].values[0].truth);
  EXPECT_EQ(entries[1].values[0].kind, YamlScalar::Kind::Text);
  EXPECT_EQ(entries[2].values[1].kind, YamlScalar::Kind::Null);
  EXPECT_EQ(entries[2].values[2].text, "x y");
  EXPECT_EQ(entries[3].path(), "s.d");
  EXPECT_EQ(entries[3].line, 4u);
  EXPECT_EQ(entries[4].values[0].text, "1_0");
  EXPECT_TRUE(read_yaml("{}", "f").empty());
}

TEST(YamlFile, RefusesWhatIsNoListOfOptions) {
  const auto error = [](const std::string& text) {
    try {
      read_yaml(text, "f");
    } catch (const ConfigError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_THAT(error("a: &x 1\nb: *x"), HasSubstr("f:1: a file of options has no anchors"));
  EXPECT_THAT(error("a: *x"), HasSubstr("an alias"));
  EXPECT_THAT(error("a: !!python/name:os.system 1"), HasSubstr("no tags"));
  EXPECT_THAT(error("a: 1\nb: 2\na: 3"), AllOf(HasSubstr("f:3: a key must be given once"), HasSubstr("line 1")));
  EXPECT_THAT(error("s: {t: {a: 1}}"), HasSubstr("the value of s.t must be a scalar or a list"));
  EXPECT_THAT(error("a: [[1]]"), HasSubstr("must have scalars alone"));
  EXPECT_THAT(error("a: 010"), HasSubstr("base 8"));
  EXPECT_EQ(error("a: 0.10\nb: 0\nc: '010'"), "");
  EXPECT_THAT(error("a: ${HOME}/x"), HasSubstr("variables are not replaced"));
  EXPECT_THAT(error("a: 1\n--- \nb: 1"), HasSubstr("one document"));
  EXPECT_THAT(error("[1]"), HasSubstr("one mapping"));
  EXPECT_THAT(error(""), HasSubstr("one mapping"));
  EXPECT_THAT(error("a: [1"), HasSubstr("must be YAML"));
  EXPECT_THAT(error("? [a]\n: 1"), HasSubstr("a key must be a word"));
  EXPECT_THAT(error("a: \"\\0\""), HasSubstr("zero bytes"));
  EXPECT_THAT(error("a: \xff"), HasSubstr("must be YAML"));
  EXPECT_THAT(error("a: " + std::string(1'000'000, '[')), HasSubstr("must have scalars alone"));  // no stack is used
  EXPECT_THAT(error(std::string((1 << 20) + 1, ' ')), HasSubstr("at most 1 MiB"));
}

}  // namespace
}  // namespace megatron::config
