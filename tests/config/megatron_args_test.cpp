#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/config/megatron/arguments.h"
#include "megatron/config/megatron/flag_table.h"
#include "megatron/config/megatron/translate.h"
#include "megatron/config/options.h"
#include "megatron/config/value.h"

// Expected values are derived by hand from Megatron-LM's argument parser, its validate_args() and its scheduler.
namespace megatron::config {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr const char* kSmall =
    "--num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 1024 --max-position-embeddings 1024 "
    "--micro-batch-size 4 --train-iters 100 --lr 1e-4 ";

MegatronTranslation translated(const std::string& words, const std::string& program = "pretrain_gpt", int ranks = 1) {
  return translate_megatron_arguments(program, shell_words(words, "test"), {.world_size = ranks});
}
RunConfig recipe(const std::string& words, const std::string& program = "pretrain_gpt", int ranks = 1) {
  return translated(words, program, ranks).config;
}
std::string error_of(const std::string& words, const std::string& program = "pretrain_gpt") {
  try {
    translated(words, program);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}
std::vector<std::string> words_of(const std::vector<MegatronTranslation::Line>& lines) {
  std::vector<std::string> words;
  for (const auto& line : lines) words.push_back(line.words);
  return words;
}

TEST(MegatronTable, NamesEachFlagOnceWithAValueOfItsKind) {
  std::set<std::string> names;
  for (const MegatronFlag& flag : megatron_flags()) {
    for (const std::string& name : flag.names) {
      EXPECT_TRUE(names.insert(name).second) << name;
      EXPECT_EQ(megatron_flag(name), &flag);
    }
    EXPECT_FALSE(flag.text.empty()) << flag.flag();
    EXPECT_TRUE(flag.harmless.empty() || flag.use == FlagUse::Missing) << flag.flag();
    if (!flag.default_value.empty() && flag.kind != FlagKind::Switch) {
      EXPECT_THAT(MegatronArguments({flag.flag(), flag.default_value}).errors(), IsEmpty()) << flag.flag();
    }
  }
  EXPECT_GE(names.size(), 862u);
  EXPECT_EQ(megatron_flag("no-such-flag"), nullptr);
}

TEST(MegatronTable, MapsToOptionsThatExist) {
  RunConfig run;
  std::set<std::string> paths;
  for (const Field& field : fields_of(run).fields) paths.insert(field.path);
  for (const MegatronFlag& flag : megatron_flags())
    for (const std::string& path : mapped_paths(flag)) EXPECT_TRUE(paths.contains(path)) << flag.flag() << " " << path;
}

/// A value that is not the default: another number, another choice, any word.
std::vector<std::string> another_value(const MegatronFlag& flag) {
  const std::map<std::string, std::string> forms = {
      {"window-size", "7,0"},       {"split", "8,1,1"},           {"step-batch-size-schedule", "0:4"},
      {"hidden-size", "1536"},      {"recompute-modules", "mlp"}, {"rerun-mode", "report_stats"},
      {"dataloader-type", "cyclic"}};
  if (const auto form = forms.find(flag.names.front()); form != forms.end()) return {form->second};
  if (flag.kind == FlagKind::Switch) return {};
  if (flag.kind == FlagKind::Int) return {flag.default_value == "2" ? "3" : "2"};
  if (flag.kind == FlagKind::Float) return {flag.default_value == "0.25" ? "0.5" : "0.25"};
  if (flag.kind == FlagKind::Three) return {"4", "4", "32"};
  for (const std::string& choice : flag.choices)
    if (choice != flag.default_value) return {choice};
  return {"3"};
}

TEST(MegatronTable, NoFlagIsDroppedWithoutAWord) {
  // With each of these lists some flags have an effect that they have not with the others.
  const std::vector<std::pair<std::string, std::string>> lists = {
      {"pretrain_gpt", ""},
      {"pretrain_gpt",
       "--tensor-model-parallel-size 2 --load F --save F --save-interval 5 --use-persistent-ckpt-worker "
       "--position-embedding-type rope "
       "--use-rope-scaling --group-query-attention --num-query-groups 4"},
      {"pretrain_gpt",
       "--fp16 --recompute-granularity full --recompute-method block --use-mup --decoupled-lr 1 "
       "--wandb-project p --timing-log-level 1 --fim-data"},
      {"pretrain_gpt",
       "--bf16 --recompute-granularity selective --use-distributed-optimizer --overlap-grad-reduce "
       "--tokenizer-type GPTSentencePieceTokenizer --num-experts 8"},
      {"pretrain_t5", "--decoder-seq-length 64"},
      {"pretrain_bert", ""},
      {"pretrain_gpt", "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2"},
      {"pretrain_gpt", "--quick-geglu --weight-decay-incr-style cosine --start-weight-decay 0 --end-weight-decay 1"},
      {"pretrain_gpt", "--train-samples 400"}};
  for (const MegatronFlag& flag : megatron_flags()) {
    // The data types of both moments must be one, else that is an error: tried together below.
    const bool other_spelling = flag.names.front().starts_with("encoder-");  // of num-layers, seq-length
    if (flag.use != FlagUse::Maps || other_spelling || flag.names.front().starts_with("exp-avg")) continue;
    bool told = false;
    for (const auto& [program, more] : lists) {
      std::string base = kSmall + more;
      if (more.starts_with("--train-samples")) base.erase(base.find("--train-iters 100"), 17);
      std::string typed = flag.flag();
      for (const std::string& value : another_value(flag)) typed += " " + value;
      const RunConfig plain = recipe(base, program, 2);
      try {
        const auto with = translated(base + " " + typed, program, 2);
        const auto names_it = [&](const auto& line) { return line.words.starts_with(flag.flag()); };
        told = told || save_toml(with.config) != save_toml(plain) || !with.pretrained.empty() || with.load_must_exist ||
               std::ranges::any_of(with.ignored, names_it);
      } catch (const ConfigError&) {
        continue;  // excluded by what the list has
      }
      if (told) break;
    }
    EXPECT_TRUE(told) << flag.flag() << " changes no recipe";
  }
  EXPECT_EQ(recipe(std::string(kSmall) + "--exp-avg-dtype bf16 --exp-avg-sq-dtype bf16").optimizer.state_dtype, "bf16");
}

TEST(MegatronArguments, AreReadAsArgparseReadsThem) {
  const MegatronArguments args({"--lr=1e-3",
                                "--micro-batch-size",
                                "2",
                                "--lr",
                                ".5",
                                "--data-path",
                                "0.3",
                                "A",
                                "0.7",
                                "B",
                                "--data-path",
                                "C",
                                "--inference-batch-times-seqlen-threshold",
                                "-1",
                                "--bf16",
                                "--train.out",
                                "runs/a",
                                "--split",
                                "'99, 1,0'",
                                "--seed",
                                "1_000"});
  EXPECT_THAT(args.errors(), IsEmpty());
  EXPECT_EQ(args.number("lr"), 0.5);                      // the last holds
  EXPECT_THAT(args.list("data-path"), ElementsAre("C"));  // of a list too
  EXPECT_EQ(args.integer("inference-batch-times-seqlen-threshold"), -1);
  EXPECT_EQ(args.integer("seed"), 1000);
  EXPECT_TRUE(args.has("bf16"));
  EXPECT_FALSE(args.has("fp16"));
  EXPECT_EQ(args.text("split"), "'99, 1,0'");
  EXPECT_EQ(args.integer("eval-iters"), 100);  // its default
  EXPECT_THAT(args.own_words(), ElementsAre("--train.out", "runs/a"));
}

TEST(MegatronArguments, SayWhatIsWrongWithEachWord) {
  const auto error = [](std::vector<std::string> words) {
    const MegatronArguments args(words);
    return args.errors().size() == 1 ? args.errors()[0] : testing::PrintToString(args.errors());
  };
  EXPECT_EQ(error({"--micro-batch-size", "x"}),
            "--micro-batch-size takes an integer.\n  got:  'x'\n  fix:  --micro-batch-size 1");
  EXPECT_THAT(error({"--micro-batch-size"}), HasSubstr("got:  none"));
  EXPECT_THAT(error({"--micro-batch-size", "1.5"}), HasSubstr("takes an integer"));
  EXPECT_THAT(error({"--micro-batch-size", "--bf16"}), HasSubstr("got:  none"));
  EXPECT_THAT(error({"--lr", "nan"}), HasSubstr("takes a number"));
  EXPECT_THAT(error({"--bf16=true"}), HasSubstr("--bf16 takes no value"));
  EXPECT_THAT(error({"--bf16", "true"}), HasSubstr("every word must be an option"));
  EXPECT_THAT(error({"--optimizer", "adm"}),
              AllOf(HasSubstr("--optimizer must be one of adam, sgd"), HasSubstr("fix:  --optimizer adam")));
  EXPECT_THAT(error({"--micro-batch-sise", "1"}), HasSubstr("fix:  --micro-batch-size"));
  EXPECT_THAT(error({"--micro-batch"}), HasSubstr("must be one of Megatron-LM's parser"));  // no abbreviations
  EXPECT_THAT(error({"--micro_batch_size", "1"}), HasSubstr("fix:  --micro-batch-size"));
  EXPECT_THAT(error({"--rampup-batch-size", "1", "2"}), HasSubstr("three integers"));
  EXPECT_THAT(error({"--recompute-modules"}), HasSubstr("one value or more"));
}

TEST(ShellWords, AreSplitAsAShellSplitsThem) {
  EXPECT_THAT(shell_words("a 'b c'  \"d \\\" e\\f\" g\\ h ''\"'1,2'\"'' \\\n k''\n", "t"),
              ElementsAre("a", "b c", "d \" e\\f", "g h", "'1,2'", "k"));
  EXPECT_THAT(shell_words("a '' b", "t"), ElementsAre("a", "", "b"));
  EXPECT_THAT(shell_words("", "t"), IsEmpty());
  EXPECT_THROW(shell_words("a 'b", "t"), ConfigError);
}

TEST(MegatronArgs, BringTheDefaultsOfMegatronLm) {
  const RunConfig run = recipe(kSmall, "pretrain_gpt", 8);
  EXPECT_EQ(run.model.architecture, "gpt");
  EXPECT_EQ(run.model.ffn_hidden_size, 3072);
  EXPECT_EQ(run.model.kv_channels, 64);
  EXPECT_EQ(run.model.num_query_groups, 0);
  EXPECT_EQ(run.model.activation, "gelu_tanh");
  EXPECT_EQ(run.model.normalization, "LayerNorm");
  EXPECT_EQ(run.model.position_embedding_type, "learned_absolute");
  EXPECT_EQ(run.model.hidden_dropout, 0.1);
  EXPECT_EQ(run.train.dtype, "fp32");
  EXPECT_EQ(run.train.global_batch_size, 32);  // 4 x dp 8
  EXPECT_EQ(run.train.seed, 1234u);
  EXPECT_EQ(run.train.eval_interval, 0);
  EXPECT_EQ(run.train.eval_iters, 100);
  EXPECT_TRUE(run.train.exit_on_nan);
  EXPECT_EQ(run.log.interval, 100);
  EXPECT_EQ(run.schedule.lr_decay_style, "linear");
  EXPECT_EQ(run.schedule.lr_decay_samples, 3200);
  EXPECT_EQ(run.schedule.min_lr, 0);
  EXPECT_EQ(run.schedule.lr_warmup_samples, 0);
  EXPECT_EQ(run.optimizer.name, "adam");
  EXPECT_EQ(run.optimizer.adam_beta2, 0.999);
  EXPECT_EQ(run.optimizer.weight_decay, 0.01);
  EXPECT_EQ(run.optimizer.clip_grad, 1.0);
  EXPECT_FALSE(run.optimizer.overlap_grad_reduce);
  EXPECT_FALSE(run.optimizer.overlap_param_gather);
  EXPECT_EQ(run.data.split, "969,30,1");
  EXPECT_EQ(run.data.tokenizer_type, "GPT2BPETokenizer");
  EXPECT_EQ(run.parallel.pp_communication, "batched");
  EXPECT_EQ(run.parallel.timeout_s, 600);
  EXPECT_EQ(run.checkpoint.save_interval, -1);  // nothing is saved
  EXPECT_EQ(run.train.out, "runs/pretrain_gpt");
}

TEST(MegatronArgs, OfGpt3WithPipelineAndRampUp) {
  const RunConfig run = recipe(
      "--num-layers 96 --hidden-size 12288 --num-attention-heads 96 --seq-length 2048 --max-position-embeddings 2048 "
      "--attention-backend auto --micro-batch-size 1 --rampup-batch-size 16 16 5859375 --global-batch-size 1536 "
      "--train-iters 500000 --weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.95 --init-method-std 0.006 --clip-grad "
      "1.0 --fp16 --lr 6.0e-5 --lr-decay-style cosine --min-lr 6.0e-6 --lr-warmup-fraction .001 --lr-decay-iters "
      "430000 "
      "--tensor-model-parallel-size 8 --pipeline-model-parallel-size 16 --data-path my/text --vocab-file v.json "
      "--merge-file m.txt --split 949,50,1 --log-interval 100 --save-interval 10000 --eval-interval 1000 --save out "
      "--load out --eval-iters 10 --tensorboard-dir tb",
      "pretrain_gpt", 1024);
  EXPECT_EQ(run.parallel.tp, 8);
  EXPECT_EQ(run.parallel.pp, 16);
  EXPECT_EQ(run.train.train_iters, 500000);
  EXPECT_THAT(run.schedule.rampup_batch_size, ElementsAre(16, 16, 5859375));
  EXPECT_EQ(run.schedule.lr_decay_samples, 660480000);  // 430000 x 1536
  EXPECT_EQ(run.schedule.lr_warmup_fraction, 0.001);
  EXPECT_EQ(run.train.dtype, "fp16");
  EXPECT_EQ(run.optimizer.grad_dtype, "fp16");  // as nothing asks for fp32
  EXPECT_FALSE(run.train.exit_on_nan);          // the loss scale is dynamic
  EXPECT_EQ(run.optimizer.initial_loss_scale, 4294967296.0);
  EXPECT_EQ(run.data.tokenizer, "v.json,m.txt");
  EXPECT_EQ(run.checkpoint.save, "out");
  EXPECT_EQ(run.train.out, "out");
  EXPECT_EQ(run.checkpoint.keep_last, 0);
  EXPECT_FALSE(run.checkpoint.async_save);
}

TEST(MegatronArgs, OfALlama) {
  const RunConfig run = recipe(
      "--use-mcore-models --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --group-query-attention "
      "--num-query-groups 8 --kv-channels 128 --ffn-hidden-size 14336 --seq-length 8192 --max-position-embeddings 8192 "
      "--position-embedding-type rope --rotary-base 1000000 --rotary-percent 1.0 --attention-dropout 0.0 "
      "--hidden-dropout 0.0 --swiglu --init-method-std 0.0134 --untie-embeddings-and-output-weights "
      "--disable-bias-linear --normalization RMSNorm --micro-batch-size 1 --global-batch-size 128 --train-samples "
      "1953125000 --lr-decay-samples 1949218748 --lr-warmup-samples 3906252 --lr 0.00015 --min-lr 0.00001 "
      "--lr-decay-style cosine --clip-grad 1.0 --weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.95 --bf16 "
      "--grad-reduce-in-bf16 --cross-entropy-loss-fusion --calculate-per-token-loss --manual-gc "
      "--empty-unused-memory-level 1 --context-parallel-size 1 --sequence-parallel --use-distributed-optimizer "
      "--overlap-grad-reduce --overlap-param-gather --tokenizer-type HuggingFaceTokenizer --tokenizer-model tok "
      "--vocab-size 128256",
      "pretrain_gpt", 8);
  EXPECT_EQ(run.model.num_query_groups, 8);
  EXPECT_EQ(run.model.kv_channels, 128);
  EXPECT_EQ(run.model.activation, "silu");
  EXPECT_TRUE(run.model.gated_linear_unit);
  EXPECT_FALSE(run.model.add_bias_linear);
  EXPECT_EQ(run.model.rotary_base, 1e6);
  EXPECT_EQ(run.model.rope_scaling_factor, 1);
  EXPECT_TRUE(run.model.untie_embeddings_and_output_weights);
  EXPECT_EQ(run.train.train_iters, 15258789);  // whole batches
  EXPECT_EQ(run.data.index_samples, 1953125000);
  EXPECT_EQ(run.schedule.lr_decay_samples, 1949218748);
  EXPECT_EQ(run.schedule.lr_warmup_samples, 3906252);
  EXPECT_EQ(run.optimizer.grad_dtype, "bf16");
  EXPECT_TRUE(run.optimizer.use_distributed_optimizer);
  EXPECT_FALSE(run.parallel.sp);  // with one tensor-parallel rank
  EXPECT_EQ(run.data.tokenizer, "tok");
  EXPECT_EQ(run.model.vocab_size, 128256);
}

TEST(MegatronArgs, OfBertAndT5) {
  const RunConfig bert = recipe(
      std::string(kSmall) + "--bert-no-binary-head --vocab-file vocab.txt --decoder-seq-length 3", "pretrain_bert");
  EXPECT_EQ(bert.model.architecture, "bert");
  EXPECT_FALSE(bert.model.bert_binary_head);
  EXPECT_EQ(bert.model.num_tokentypes, 0);
  EXPECT_EQ(bert.data.tokenizer_type, "BertWordPieceLowerCase");
  EXPECT_EQ(bert.data.tokenizer, "vocab.txt");
  EXPECT_EQ(bert.data.decoder_seq_length, 0);
  const RunConfig t5 = recipe(
      "--encoder-num-layers 12 --decoder-num-layers 6 --hidden-size 768 --num-attention-heads 12 --kv-channels 64 "
      "--ffn-hidden-size 3072 --encoder-seq-length 512 --decoder-seq-length 128 --max-position-embeddings 512 "
      "--micro-batch-size 64 --global-batch-size 512 --lr 0.0001 --train-iters 1000000 --bf16 --vocab-file v "
      "--tokenizer-type BertWordPieceCase",
      "pretrain_t5", 8);
  EXPECT_EQ(t5.model.architecture, "t5");
  EXPECT_EQ(t5.model.num_layers, 12);
  EXPECT_EQ(t5.model.decoder_num_layers, 6);
  EXPECT_EQ(t5.data.seq_length, 512);
  EXPECT_EQ(t5.data.decoder_seq_length, 128);
  EXPECT_EQ(t5.data.tokenizer_type, "BertWordPieceCase");
  EXPECT_EQ(t5.optimizer.grad_dtype, "fp32");
  EXPECT_EQ(t5.model.position_embedding_type, "learned_absolute");
  // Relative positions are another model there: scores are divided, and nothing is dropped inside of an MLP.
  EXPECT_THAT(
      error_of(std::string(kSmall) + "--decoder-seq-length 128 --position-embedding-type relative", "pretrain_t5"),
      HasSubstr("relative positions as Megatron-LM has them"));
}

TEST(MegatronArgs, SayWhichGeluAndWhichWidth) {
  const std::string small = kSmall;
  EXPECT_EQ(recipe(small + "--no-bias-gelu-fusion").model.activation, "gelu");
  EXPECT_EQ(recipe(small + "--disable-bias-linear").model.activation, "gelu");
  EXPECT_EQ(recipe(small + "--openai-gelu").model.activation, "gelu_tanh");
  EXPECT_EQ(recipe(small + "--squared-relu --no-bias-gelu-fusion").model.activation, "squared_relu");
  EXPECT_EQ(recipe(small + "--swiglu").model.ffn_hidden_size, 2048);                     // 8/3 x 768
  EXPECT_EQ(recipe(small + "--swiglu --hidden-size 1200").model.ffn_hidden_size, 3200);  // 3200 exactly
  EXPECT_EQ(recipe(small + "--swiglu --hidden-size 1236").model.ffn_hidden_size, 3264);  // 3296 in steps of 64
  EXPECT_EQ(recipe(small + "--kv-channels 32").model.kv_channels, 32);
  EXPECT_EQ(recipe(small + "--group-query-attention").model.num_query_groups, 1);
  EXPECT_EQ(recipe(small + "--num-query-groups 4").model.num_query_groups, 0);
  EXPECT_EQ(recipe(small + "--no-pad-vocab-size").model.make_vocab_size_divisible_by, 1);
  EXPECT_EQ(recipe(small + "--window-size 127,0").model.sliding_window, 128);
  EXPECT_EQ(recipe(small + "--window-size (127,-1)").model.sliding_window, 128);
  EXPECT_EQ(recipe(small + "--window-size 127,127", "pretrain_bert").model.sliding_window, 128);
  EXPECT_THAT(error_of(small + "--window-size 127,0", "pretrain_bert"), HasSubstr("as many tokens before as behind"));
  EXPECT_THAT(error_of(small + "--window-size 127,127"), HasSubstr("of which a GPT sees none"));
  EXPECT_TRUE(recipe(small + "--qk-layernorm").model.qk_layernorm);
  EXPECT_EQ(recipe(small + "--use-rope-scaling").model.rope_scaling_factor, 1);  // without rotary positions
  EXPECT_EQ(recipe(small + "--use-rope-scaling --use-rotary-position-embeddings").model.rope_scaling_factor, 8);
  EXPECT_EQ(recipe(small + "--rope-scaling-factor 4 --position-embedding-type rope").model.rope_scaling_factor, 1);
  EXPECT_TRUE(recipe(small + "--add-qkv-bias").model.add_qkv_bias);
}

TEST(MegatronArgs, DecayTheNormsOfQueriesAndKeysWhereAsked) {
  const std::string small = kSmall;
  for (const std::string words :
       {"--apply-wd-to-qk-layernorm", "--no-weight-decay-cond-type apply_wd_to_qk_layernorm"}) {
    EXPECT_THAT(recipe(small + "--qk-layernorm " + words).optimizer.wd_mult,
                ElementsAre("*.q_layernorm.*=1", "*.k_layernorm.*=1"));
    EXPECT_THAT(words_of(translated(small + words).ignored), ElementsAre(words));
  }
}

TEST(MegatronArgs, ProfileRanksOnGpusToo) {
  const auto words = shell_words(std::string(kSmall) + "--profile", "test");
  for (const char* device : {"cpu", "cuda"})
    EXPECT_TRUE(translate_megatron_arguments("pretrain_gpt", words, {.device = device}).config.log.profile) << device;
}

TEST(MegatronArgs, ScaleMuonAsThere) {
  const std::string small = std::string(kSmall) + "--position-embedding-type rope ";
  const OptimizerConfig plain = recipe(small + "--optimizer muon").optimizer;
  EXPECT_EQ(plain.name, "muon");
  EXPECT_EQ(plain.muon_momentum, 0.9);
  EXPECT_FALSE(plain.muon_nesterov);
  EXPECT_EQ(plain.muon_scale_mode, "spectral");
  EXPECT_EQ(plain.muon_coefficient_type, "quintic");
  EXPECT_EQ(plain.muon_num_ns_steps, 5);
  EXPECT_EQ(plain.muon_extra_scale_factor, 1);
  EXPECT_TRUE(plain.muon_split_qkv);
  EXPECT_FALSE(plain.muon_split_gated);
  const OptimizerConfig given =
      recipe(small +
             "--optimizer dist_muon --muon-momentum 0.95 --muon-nesterov --muon-scale-mode unit_rms_norm "
             "--muon-extra-scale-factor 0.2 --muon-no-split-qkv --muon-coefficient-type polar_express "
             "--muon-num-ns-steps 8")
          .optimizer;
  EXPECT_EQ(given.muon_momentum, 0.95);
  EXPECT_TRUE(given.muon_nesterov);
  EXPECT_EQ(given.muon_scale_mode, "unit_rms_norm");
  EXPECT_EQ(given.muon_extra_scale_factor, 0.2);
  EXPECT_FALSE(given.muon_split_qkv);
  EXPECT_EQ(given.muon_coefficient_type, "polar_express");
  EXPECT_EQ(given.muon_num_ns_steps, 8);
  EXPECT_TRUE(given.use_distributed_optimizer);
  // Theirs orthogonalizes learned positions too; these are no matrix of a layer here.
  EXPECT_THAT(error_of(std::string(kSmall) + "--optimizer muon"), HasSubstr("Muon of position embeddings"));
  EXPECT_THAT(error_of(small + "--optimizer muon", "pretrain_bert"), HasSubstr("Muon of models other than GPTs"));
  EXPECT_THAT(error_of(small + "--optimizer muon --muon-scalar-optimizer lion"), HasSubstr("Muon beside Lion"));
  EXPECT_THAT(error_of(small + "--optimizer muon --muon-coefficient-type cubic5"), HasSubstr("other coefficients"));
  EXPECT_THAT(words_of(translated(small + "--muon-nesterov").ignored), ElementsAre("--muon-nesterov"));
}

TEST(MegatronArgs, CountTheScheduleInSamples) {
  const std::string small = std::string(kSmall) + "--global-batch-size 32 ";
  EXPECT_EQ(recipe(small + "--lr-warmup-iters 10").schedule.lr_warmup_samples, 320);
  EXPECT_EQ(recipe(small + "--lr-decay-iters 50").schedule.lr_decay_samples, 1600);
  EXPECT_EQ(recipe(small + "--lr-decay-style WSD --lr-wsd-decay-iters 5").schedule.lr_wsd_decay_samples, 160);
  EXPECT_THAT(error_of(small + "--lr-decay-samples 7"), HasSubstr("fix:  --lr-decay-iters 1"));
  EXPECT_THAT(error_of(small + "--train-samples 640"), HasSubstr("--train-iters and --train-samples exclude"));
  EXPECT_THAT(error_of(small + "--lr-warmup-iters 300000"), HasSubstr("fix:  --lr-warmup-iters "));
  EXPECT_EQ(recipe(small + "--exit-signal-handler --exit-signal SIGUSR1").train.exit_signal, "SIGUSR1");
  EXPECT_THAT(error_of(small + "--exit-signal-handler --exit-signal SIGALRM"), HasSubstr("end by signals other than"));
  EXPECT_THAT(error_of(small + "--lr-warmup-iters 3 --lr-warmup-fraction .1"), HasSubstr("other lengths of the"));
  EXPECT_EQ(recipe(small + "--lr-warmup-iters 0 --lr-warmup-fraction .1").schedule.lr_warmup_fraction, 0.1);
}

TEST(MegatronArgs, CountTheStepsOfAGrowingBatch) {
  // Counted step by step with RampupBatchsizeNumMicroBatchesCalculator of megatron-core 0.16.1, as its
  // update_train_iters() does: until the growth's samples are exceeded, then whole batches of the full size.
  struct Case {
    const char* ramp;
    std::int64_t batch, samples, steps;
  };
  const std::string small = std::string(kSmall).replace(std::string(kSmall).find("--train-iters 100"), 17, "");
  for (const Case& each :
       {Case{"4 4 64", 12, 400, 40}, Case{"16 16 5859375", 1536, 300'000'000, 211'299},
        Case{"32 32 65324160", 128, 268'554'688, 2'835'248}, Case{"8 8 1000", 64, 1200, 50},
        Case{"8 8 1000", 64, 900, 45}, Case{"8 8 1000", 64, 0, 31}, Case{"2 3 1001", 17, 5000, 433},
        Case{"1 7 977", 50, 3000, 226}, Case{"100 100 1000000000", 1000, 10'000'000'000, 12'143'299}}) {
    const RunConfig run =
        recipe(small + "--micro-batch-size 1 --rampup-batch-size " + each.ramp + " --global-batch-size " +
               std::to_string(each.batch) + " --train-samples " + std::to_string(each.samples));
    EXPECT_EQ(run.train.train_iters, each.steps) << each.ramp;
    EXPECT_EQ(run.data.index_samples, each.samples == 900 ? 0 : each.samples);  // there the steps take more
    EXPECT_EQ(run.schedule.lr_decay_samples, each.samples);
  }
  // A rule of the recipe explains these; until then they count as no growth.
  EXPECT_EQ(recipe(small + "--rampup-batch-size 0 0 0 --global-batch-size 8 --train-samples 80").train.train_iters, 10);
  EXPECT_EQ(recipe(small + "--rampup-batch-size 1 1 9000000000000000000 --global-batch-size 9000000000000000000 "
                           "--train-samples 80")
                .train.train_iters,
            0);
}

TEST(MegatronArgs, MakeTheOrderOfDataForAsManySamplesAsThere) {
  const std::string small = std::string(kSmall) + "--global-batch-size 32 ";
  EXPECT_EQ(recipe(small).data.index_samples, 0);  // 100 x 32, which is what the steps take
  EXPECT_EQ(recipe(small + "--rampup-batch-size 4 4 640").data.index_samples, 3200);
  const std::string samples = std::string(small).replace(small.find("--train-iters 100"), 17, "");
  EXPECT_EQ(recipe(samples + "--train-samples 640").data.index_samples, 0);
  EXPECT_EQ(recipe(samples + "--train-samples 650").data.index_samples, 650);  // 20 steps take 640
}

TEST(MegatronArgs, SayInWhichTypeGradientsAreSummed) {
  const std::string small = kSmall;
  const auto dtype = [&](const std::string& words) { return recipe(small + words).optimizer.grad_dtype; };
  EXPECT_EQ(dtype(""), "fp32");
  EXPECT_EQ(dtype("--fp16"), "fp16");
  EXPECT_EQ(dtype("--fp16 --accumulate-allreduce-grads-in-fp32"), "fp32");
  EXPECT_EQ(dtype("--bf16"), "fp32");
  EXPECT_EQ(dtype("--bf16 --grad-reduce-in-bf16"), "bf16");
  EXPECT_EQ(dtype("--bf16 --main-grads-dtype bf16 --use-precision-aware-optimizer"), "bf16");
  EXPECT_EQ(recipe(small + "--bf16 --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16").optimizer.state_dtype, "bf16");
  EXPECT_THAT(error_of(small + "--bf16 --exp-avg-dtype bf16"), HasSubstr("moments in this data type"));
  EXPECT_TRUE(recipe(small + "--fp16 --loss-scale 1024").train.exit_on_nan);
  EXPECT_EQ(recipe(small + "--fp16 --loss-scale 1024").optimizer.loss_scale, 1024);
  EXPECT_FALSE(recipe(small + "--no-check-for-nan-in-loss-and-grad").train.exit_on_nan);
}

TEST(MegatronArgs, SayHowStagesAreCut) {
  const std::string small = std::string(kSmall) + "--pipeline-model-parallel-size 2 ";
  const RunConfig by_layers = recipe(small + "--num-layers-per-virtual-pipeline-stage 3", "pretrain_gpt", 2);
  EXPECT_EQ(by_layers.parallel.layers_per_virtual_stage, 3);
  EXPECT_EQ(by_layers.parallel.pp_communication, "overlapped");
  EXPECT_EQ(recipe(small + "--num-layers-per-virtual-pipeline-stage 6", "pretrain_gpt", 2).parallel.pp_communication,
            "batched");
  const RunConfig by_stages =
      recipe(small + "--num-virtual-stages-per-pipeline-rank 2 --no-overlap-p2p-communication", "pretrain_gpt", 2);
  EXPECT_EQ(by_stages.parallel.vpp, 2);
  EXPECT_EQ(by_stages.parallel.pp_communication, "batched");
  const std::string ring = small + "--num-virtual-stages-per-pipeline-rank 2 --use-ring-exchange-p2p";
  EXPECT_EQ(recipe(ring, "pretrain_gpt", 2).parallel.pp_communication, "batched");
  const RunConfig uneven =
      recipe(small + "--decoder-first-pipeline-num-layers 5 --account-for-loss-in-pipeline-split", "pretrain_gpt", 4);
  EXPECT_EQ(uneven.parallel.first_stage_layers, 5);
  EXPECT_TRUE(uneven.parallel.account_for_loss);
  EXPECT_EQ(uneven.train.global_batch_size, 8);  // dp 2
  EXPECT_THAT(error_of(small), HasSubstr("the world size must be a multiple of tp x pp"));
}

TEST(MegatronArgs, SayWhatIsRecomputedAndKept) {
  const std::string small = kSmall,
                    block = " --recompute-granularity full --recompute-method block --recompute-num-layers 2";
  EXPECT_EQ(recipe(small + "--recompute-activations").train.recompute, "selective");
  EXPECT_EQ(recipe(small + block).train.recompute_num_layers, 2);
  EXPECT_EQ(recipe(small + "--recompute-num-layers 2").train.recompute_num_layers, 0);
  const std::string partial = small + "--num-microbatches-with-partial-activation-checkpoints ",
                    pp = " --pipeline-model-parallel-size 2", part = partial + "2 --recompute-activations" + pp;
  EXPECT_EQ(recipe(partial + "3" + pp + block, "pretrain_gpt", 2).train.recompute_partial_microbatches, 3);
  EXPECT_EQ(recipe(partial + "3" + block).train.recompute_partial_microbatches, 0) << "one microbatch at a time";
  EXPECT_EQ(recipe(partial + "0" + pp + block, "pretrain_gpt", 2).train.recompute_method, "uniform");
  EXPECT_EQ(recipe(part, "pretrain_gpt", 2).train.recompute_partial_microbatches, 2);
  EXPECT_THAT(recipe(small + "--recompute-activations --recompute-modules mlp layernorm").train.recompute_modules,
              ElementsAre("mlp", "layernorm"));
  EXPECT_THAT(error_of(small + "--recompute-activations --recompute-modules moe"), HasSubstr("recomputation of moe"));
  const RunConfig kept = recipe(small +
                                "--save a --save-interval 10 --save-retain-interval 50 --async-save "
                                "--use-persistent-ckpt-worker");
  EXPECT_EQ(kept.checkpoint.keep_last, 1);
  EXPECT_EQ(kept.checkpoint.keep_every, 50);
  EXPECT_TRUE(kept.checkpoint.async_save);
  EXPECT_THAT(error_of(small + "--save a"), HasSubstr("--save-interval must be given"));
  const auto pretrained = translated(small + "--pretrained-checkpoint p");
  EXPECT_EQ(pretrained.config.checkpoint.load, "p");
  EXPECT_TRUE(pretrained.config.checkpoint.finetune);
}

TEST(MegatronArgs, NameTokenizersByTheirFiles) {
  const std::string small = kSmall;
  const RunConfig null = recipe(small + "--tokenizer-type NullTokenizer --vocab-size 50257");
  EXPECT_EQ(null.data.tokenizer, "50256");  // and one that ends documents
  EXPECT_EQ(null.model.vocab_size, 0);
  EXPECT_THAT(error_of(small + "--tokenizer-type NullTokenizer"), HasSubstr("needs --vocab-size"));
  EXPECT_THAT(error_of(small + "--tokenizer-type SFTTokenizer"), HasSubstr("named prompt formats"));
  EXPECT_EQ(recipe(small + "--tokenizer-type Llama2Tokenizer --tokenizer-model m --vocab-file v").data.tokenizer, "m");
  EXPECT_EQ(recipe(small + "--split \"'99,1,0'\"").data.split, "99,1,0");
  EXPECT_EQ(recipe(small + "--split '969, 30, 1'").data.split, "969,30,1");
}

TEST(MegatronArgs, AreRefusedInOneErrorThatListsAllThatIsMissing) {
  const std::string error = error_of(std::string(kSmall) +
                                     "--hybrid-context-parallel --expert-model-parallel-size 1 --optimizer muon "
                                     "--moe-latent-size 8 --spec a b --warmup 3 --softmax-type vanilla --fp8-margin 0");
  EXPECT_EQ(error,
            "pretrain_gpt: these options need what is not here.\n"
            "  got:  --hybrid-context-parallel (context parallelism in levels)\n"
            "        --moe-latent-size 8 (mixture of experts)\n"
            "        --spec a b (names a Python module)\n"
            "        --warmup 3 (gone from Megatron-LM; --lr-warmup-*)\n"
            "        --optimizer muon (Muon of position embeddings; rotary ones have none)\n"
            "  fix:  leave them out, where the run may be without it; docs/from_megatron_lm.md lists what is here");
  // With other errors too.
  EXPECT_THAT(error_of("--hidden-size x --moe-latent-size 8"),
              AllOf(HasSubstr("takes an integer"), HasSubstr("mixture of experts")));
  EXPECT_THAT(error_of("--num-layers 1"),
              AllOf(HasSubstr("--hidden-size must be given"), HasSubstr("--lr must be given"),
                    HasSubstr("--micro-batch-size must be given")));
}

TEST(MegatronArgs, OfAFeatureThatNothingTurnsOnAreIgnored) {
  // Megatron-LM reads each of these only where the flag behind it is given.
  const std::string small = kSmall;
  for (const auto& [words, master] : std::vector<std::pair<std::string, std::string>>{
           {"--moe-expert-rank-capacity-factor 2", "--num-experts 8"},
           {"--dsa-indexer-topk 16", "--experimental-attention-variant dsa"},
           {"--mamba-state-dim 16", "--hybrid-layer-pattern M"},
           {"--grpo-group-size 4", "--perform-rl-step"}}) {
    const auto run = translated(small + words);
    EXPECT_THAT(words_of(run.ignored), ElementsAre(words));
    EXPECT_EQ(run.ignored.back().text, "without " + master.substr(0, master.find(' ')));
    EXPECT_EQ(save_toml(run.config), save_toml(recipe(small)));
    EXPECT_THAT(error_of(small + words + " " + master), HasSubstr(words));
  }
  for (const std::string words : {"--img-h 336", "--ict-head-size 128", "--sft-tokenizer-prompt-format default",
                                  "--tiktoken-num-special-tokens 500"})
    EXPECT_THAT(words_of(translated(small + words).ignored), ElementsAre(words));
  EXPECT_THAT(error_of(small + "--tokenizer-type TikTokenizer --tiktoken-num-special-tokens 500"),
              HasSubstr("tokenizer metadata"));
  EXPECT_THAT(words_of(translated(small + "--moe-router-topk 4 --num-experts 0").ignored),
              ElementsAre("--moe-router-topk 4", "--num-experts 0"));
  // These ask for it by themselves, or are refused there too.
  for (const std::string words : {"--expert-model-parallel-size 2", "--moe-latent-size 8", "--fp8-output-proj"})
    EXPECT_THAT(error_of(small + words), HasSubstr(words)) << words;
}

TEST(MegatronArgs, ListWhatTheyMeanAndWhatIsIgnored) {
  const auto translation = translated(std::string(kSmall) +
                                      "--lr-warmup-iters 5 --expert-tensor-parallel-size 1 --log-progress "
                                      "--no-bias-swiglu-fusion --mask-prob .2 --train.out runs/a");
  EXPECT_THAT(words_of(translation.ignored),
              ElementsAre("--expert-tensor-parallel-size 1", "--log-progress", "--no-bias-swiglu-fusion"));
  EXPECT_EQ(ignored_line(translation),
            "ignored, as they change no result: --expert-tensor-parallel-size 1, --log-progress, "
            "--no-bias-swiglu-fusion");
  ASSERT_EQ(translation.maps.size(), 10u);
  EXPECT_EQ(translation.maps[8].words, "--lr-warmup-iters 5");
  EXPECT_EQ(translation.maps[8].text, "schedule.lr_warmup_samples = 20");
  EXPECT_THAT(translation.own, ElementsAre("--train.out", "runs/a"));
}

TEST(MegatronArgs, WithNumbersOutOfRangeEndInNoOverflow) {
  const RunConfig run = recipe(
      "--num-layers 12 --hidden-size 9223372036854775807 --num-attention-heads 1 --seq-length 1 "
      "--max-position-embeddings 1 --micro-batch-size 9223372036854775807 --train-iters "
      "9223372036854775807 --lr 1 --tensor-model-parallel-size 1");
  EXPECT_EQ(run.model.ffn_hidden_size, 9223372036854775807);
  EXPECT_EQ(run.schedule.lr_decay_samples, 9223372036854775807);
  EXPECT_THAT(error_of("--num-layers 99999999999999999999"), HasSubstr("takes an integer"));
}

}  // namespace
}  // namespace megatron::config
