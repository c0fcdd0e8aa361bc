#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/config/megatron/train_steps.h"
#include "megatron/config/megatron/translation.h"

// Batches, data, optimizer, schedule, checkpoints.
namespace megatron::config {
namespace {

std::string split_shares(const std::string& text) {
  std::string shares, number;
  for (const char c : text + " ") {
    if ((c >= '0' && c <= '9') || c == '.') {
      number += c;
    } else if (!number.empty()) {
      shares += (shares.empty() ? "" : ",") + number;
      number.clear();
    }
  }
  return shares;
}

void fill_in_middle(Translation& c) {
  FimConfig& f = c.run.fim;
  f.rate = c.args.number("fim-rate");
  f.spm_rate = c.args.number("fim-spm-rate");
  if (c.args.has("fim-fragment-rate")) f.fragment_rate = c.args.number("fim-fragment-rate");
  f.split_sample = c.args.text("fim-split-sample");
  f.no_prefix = c.args.text("fim-no-prefix");
  f.prefix_token = c.args.text("fim-prefix-token");
  f.middle_token = c.args.text("fim-middle-token");
  f.suffix_token = c.args.text("fim-suffix-token");
  f.pad_token = c.args.text("fim-pad-token");
  f.eod_token = c.args.text("fim-eod-token");
}

void gradients(Translation& c, OptimizerConfig& o) {
  const std::string& dtype = c.run.train.dtype;
  const bool in_fp32 = c.args.has("accumulate-allreduce-grads-in-fp32");
  const bool main_in_fp32 = c.args.text("main-grads-dtype") == "fp32";
  if (dtype == "bf16") {  // reduced in fp32 by itself
    const bool low = c.args.has("grad-reduce-in-bf16") || (!in_fp32 && !main_in_fp32);
    o.grad_dtype = low ? "bf16" : "fp32";
    if (c.args.has("grad-reduce-in-bf16")) c.ignore("accumulate-allreduce-grads-in-fp32", "with --grad-reduce-in-bf16");
  } else {
    o.grad_dtype = in_fp32 ? "fp32" : dtype;  // of fp16 in fp16
    c.ignore("grad-reduce-in-bf16", "without --bf16");
  }
  const std::string first = c.args.text("exp-avg-dtype"), second = c.args.text("exp-avg-sq-dtype");
  if (first == second && (first == "fp32" || first == "bf16")) {
    o.state_dtype = first;
  } else {
    c.miss("exp-avg-dtype", "moments in this data type");
    c.miss("exp-avg-sq-dtype", "moments in this data type");
  }
}

/// Sizes that the global batch takes, and the first sample of each: "0:384 200B:768", thresholds in tokens. Empty where
/// the text is none of that, which the recipe's own rules explain.
std::vector<std::pair<std::int64_t, std::int64_t>> batch_steps(const std::string& text, std::int64_t seq_length) {
  std::vector<std::pair<std::int64_t, std::int64_t>> steps;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const std::size_t colon = word.find(':');
    std::int64_t tokens = 0, size = 0, unit = 1;
    if (colon == std::string::npos || colon == 0) return {};
    std::string threshold = word.substr(0, colon);
    for (const auto& [suffix, factor] : {std::pair{'K', 1'000LL}, std::pair{'M', 1'000'000LL},
                                         std::pair{'B', 1'000'000'000LL}, std::pair{'T', 1'000'000'000'000LL}})
      if (threshold.back() == suffix) unit = factor;
    if (unit > 1) threshold.pop_back();
    if (!read_integer(threshold, tokens) || !read_integer(word.substr(colon + 1), size) || tokens < 0 || size <= 0)
      return {};
    steps.emplace_back(product(tokens, unit) / std::max<std::int64_t>(1, seq_length), size);
  }
  return steps;
}

/// Steps until `samples` or more are trained on.
std::int64_t steps_for(std::int64_t samples, const std::vector<std::pair<std::int64_t, std::int64_t>>& sizes) {
  std::int64_t consumed = 0, iterations = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const std::int64_t size = sizes[i].second,
                       end = i + 1 < sizes.size() ? std::min(samples, sizes[i + 1].first) : samples;
    if (end <= consumed) continue;
    const std::int64_t steps = (end - consumed + size - 1) / size;  // a size holds for each that begins before the end
    iterations += steps;
    consumed += steps * size;
  }
  return iterations;
}

void batch_by_steps(Translation& c, const std::string& text) {
  TrainConfig& t = c.run.train;
  c.forbid_both("step-batch-size-schedule", "rampup-batch-size");
  c.forbid_both("step-batch-size-schedule", "global-batch-size");
  c.require(c.args.has("train-samples"), "--step-batch-size-schedule needs the run's length in samples.", "none",
            "--train-samples 19531250");
  c.run.schedule.step_batch_size = text;
  const auto sizes = batch_steps(text, c.run.data.seq_length);
  if (sizes.empty()) return;
  t.eval_global_batch_size = t.global_batch_size;
  t.global_batch_size = sizes.back().second;
  if (c.args.has("train-samples")) t.train_iters = steps_for(c.args.integer("train-samples"), sizes);
}

constexpr std::array kOfMuon = {"muon-momentum",         "muon-no-split-qkv",      "muon-nesterov",
                                "muon-scale-mode",       "muon-tp-mode",           "muon-coefficient-type",
                                "muon-num-ns-steps",     "muon-use-syrk",          "muon-fp32-matmul-prec",
                                "muon-scalar-optimizer", "muon-extra-scale-factor"};

/// Theirs takes the momentum as a mean, whose length the steps of Newton and Schulz divide out, and a gated MLP's two
/// halves as one matrix.
void muon(Translation& c, OptimizerConfig& o) {
  o.name = "muon";
  o.muon_momentum = c.args.number("muon-momentum");
  o.muon_nesterov = c.args.has("muon-nesterov");
  o.muon_num_ns_steps = c.args.integer("muon-num-ns-steps");
  o.muon_scale_mode = c.args.text("muon-scale-mode");
  o.muon_extra_scale_factor = c.args.number("muon-extra-scale-factor");
  o.muon_split_qkv = !c.args.has("muon-no-split-qkv");
  o.muon_split_gated = false;
  const std::string type = c.args.text("muon-coefficient-type");
  constexpr std::array<std::string_view, 6> kTypes = {"simple", "quintic", "polar_express",
                                                      "cans",   "aol",     "deepseekv4"};
  if (std::ranges::find(kTypes, type) != kTypes.end())
    o.muon_coefficient_type = type;
  else
    c.miss("muon-coefficient-type", "other coefficients");
  if (c.args.text("muon-scalar-optimizer") != "adam") c.miss("muon-scalar-optimizer", "Muon beside Lion");
  if (c.args.text("muon-tp-mode") == "blockwise" && c.run.parallel.tp > 1)
    c.miss("muon-tp-mode", "an update that follows the layout");
  if (!c.traits().causal || c.traits().encoder_decoder)
    c.miss("optimizer", "Muon of models other than GPTs");
  else if (c.run.model.position_embedding_type == "learned_absolute")
    c.miss("optimizer", "Muon of position embeddings; rotary ones have none");
}

/// Delayed scales follow from whole steps here, there from microbatches.
void eight_bits(Translation& c) {
  Fp8Config& f = c.run.fp8;
  if (!c.args.has("fp8-format")) {
    for (const char* name :
         {"fp8-recipe", "fp8-margin", "fp8-amax-history-len", "fp8-amax-compute-algo", "no-fp8-wgrad",
          "first-last-layers-bf16", "num-layers-at-start-in-bf16", "num-layers-at-end-in-bf16"})
      c.ignore(name, "without --fp8-format");
    return;
  }
  f.format = c.args.text("fp8-format");
  f.margin = c.args.integer("fp8-margin");
  f.amax_history_len = c.args.integer("fp8-amax-history-len");
  f.amax_compute_algo = c.args.text("fp8-amax-compute-algo");
  f.wgrad = !c.args.has("no-fp8-wgrad");
  f.first_last_layers_bf16 = c.args.has("first-last-layers-bf16");
  f.num_layers_at_start_in_bf16 = c.args.integer("num-layers-at-start-in-bf16");
  f.num_layers_at_end_in_bf16 = c.args.integer("num-layers-at-end-in-bf16");
  const std::string recipe = c.args.text("fp8-recipe");
  if (recipe != "custom")
    f.recipe = recipe;
  else
    c.miss("fp8-recipe", "FP8 scaled otherwise than by --fp8-recipe delayed, tensorwise, blockwise or mxfp8");
}

void exits(Translation& c) {
  TrainConfig& t = c.run.train;
  if (c.args.has("exit-interval")) t.exit_interval = c.args.integer("exit-interval");
  if (c.args.has("exit-duration-in-mins"))
    t.exit_duration_mins = static_cast<double>(c.args.integer("exit-duration-in-mins"));
  if (!c.args.has("exit-signal-handler")) {
    c.ignore("exit-signal", "without --exit-signal-handler");
  } else if (const std::string signal = c.args.text("exit-signal");
             signal == "SIGTERM" || signal == "SIGINT" || signal == "SIGHUP" || signal == "SIGUSR1") {
    t.exit_signal = signal;
  } else {
    c.miss("exit-signal", "an end by signals other than SIGTERM, SIGINT, SIGHUP and SIGUSR1");
  }
  if (c.args.has("rerun-mode") && c.args.text("rerun-mode") == "report_stats") c.run.guard.rerun_interval = 1;
  for (const std::string& word : c.args.list("iterations-to-skip")) {  // counted from 0 there
    std::int64_t number = 0;
    c.require(read_integer(word, number) && number >= 0, "--iterations-to-skip takes iterations from 0 on.", word,
              "--iterations-to-skip 7");
    c.run.guard.skip_iterations.push_back(number + 1);
  }
}

}  // namespace

void translate_batches(Translation& c) {
  TrainConfig& t = c.run.train;
  const ParallelConfig& p = c.run.parallel;
  t.micro_batch_size = c.needed("micro-batch-size");
  const std::int64_t model = std::max<std::int64_t>(1, product(product(p.tp, p.cp), p.pp));
  c.require(c.launch.world_size % model == 0,
            concat("the world size must be a multiple of tp x ", p.cp > 1 ? "cp x " : "", "pp."),
            concat(c.launch.world_size, " ranks, tp ", p.tp, p.cp > 1 ? concat(", cp ", p.cp) : "", ", pp ", p.pp),
            concat("start ", model, " ranks"));
  const std::int64_t dp = std::max<std::int64_t>(1, c.launch.world_size / model);
  t.global_batch_size =
      c.args.has("global-batch-size") ? c.args.integer("global-batch-size") : product(t.micro_batch_size, dp);
  t.seed = static_cast<std::uint64_t>(std::max<std::int64_t>(0, c.args.integer("seed")));
  c.require(c.args.integer("seed") >= 0, "--seed must be at least 0.", c.args.text("seed"), "--seed 1234");
  c.require(!c.args.has("bf16") || !c.args.has("fp16"), "--bf16 and --fp16 exclude one another.", "both",
            "leave --fp16 out");
  t.deterministic_mode = c.args.has("deterministic-mode");
  t.dtype = c.args.has("bf16") ? "bf16" : c.args.has("fp16") ? "fp16" : "fp32";
  eight_bits(c);
  // A dynamic loss scale meets infinite gradients by design.
  const bool dynamic = t.dtype == "fp16" && !(c.args.has("loss-scale") && c.args.number("loss-scale") != 0);
  t.exit_on_nan = !dynamic && !c.args.has("no-check-for-nan-in-loss-and-grad");
  for (const std::string& word : c.args.list("rampup-batch-size")) {
    std::int64_t number = 0;
    if (read_integer(word, number)) c.run.schedule.rampup_batch_size.push_back(number);
  }
  c.forbid_both("train-iters", "train-samples");
  if (c.args.has("train-samples") && !(c.is_saved() && c.args.has("train-iters")))
    t.train_iters =
        steps_of_samples(c.args.integer("train-samples"), t.global_batch_size, c.run.schedule.rampup_batch_size);
  else
    t.train_iters = c.needed("train-iters");
  exits(c);
}

/// The order of the data is made there for more samples than the steps take.
void index_of_samples(Translation& c) {
  if (!c.run.schedule.step_batch_size.empty()) return;  // the last step goes beyond
  const TrainConfig& t = c.run.train;
  std::optional<std::int64_t> samples;
  if (c.args.has("train-samples")) samples = c.args.integer("train-samples");
  c.run.data.index_samples =
      index_samples_of(samples, t.train_iters, t.global_batch_size, c.run.schedule.rampup_batch_size);
}

void translate_batch_steps(Translation& c) {
  std::string text = c.args.text("step-batch-size-schedule");
  std::erase_if(text, [](char letter) { return letter == '\'' || letter == '"'; });
  if (!text.empty()) batch_by_steps(c, text);
  index_of_samples(c);
}

void translate_data(Translation& c) {
  DataConfig& d = c.run.data;
  c.forbid_both("data-path", "data-args-path");
  d.data_path = c.args.list("data-path");
  d.data_args_path = c.args.text("data-args-path");
  d.train_data_path = c.args.list("train-data-path");
  d.valid_data_path = c.args.list("valid-data-path");
  d.test_data_path = c.args.list("test-data-path");
  d.per_split_data_args_path = c.args.text("per-split-data-args-path");
  d.split = c.args.has("split") ? split_shares(c.args.text("split")) : "969,30,1";
  c.forbid_both("seq-length", "encoder-seq-length");
  d.seq_length = c.needed(c.args.has("encoder-seq-length") ? "encoder-seq-length" : "seq-length");
  if (c.traits().encoder_decoder)
    d.decoder_seq_length = c.needed("decoder-seq-length");
  else
    c.ignore("decoder-seq-length", "of pretrain_t5");
  d.data_cache_path = c.args.text("data-cache-path");
  d.mock_data = c.args.has("mock-data");
  if (d.mock_data) {
    d.data_path = d.train_data_path = d.valid_data_path = d.test_data_path = {};
    d.data_args_path = d.per_split_data_args_path = "";
    for (const char* name : {"data-path", "data-args-path", "train-data-path", "valid-data-path", "test-data-path",
                             "per-split-data-args-path"})
      c.ignore(name, "with --mock-data");
  }
  d.multiple_validation_sets = c.args.has("multiple-validation-sets");
  d.full_validation = c.args.has("full-validation");
  d.sft = c.args.has("sft");
  d.fim_data = c.args.has("fim-data");
  d.reset_position_ids = c.args.has("reset-position-ids");
  // The mask that hides other documents is part of what the data loader makes.
  const bool mask = c.args.has("reset-attention-mask") && !c.args.has("no-create-attention-mask-in-dataloader");
  if (!mask) c.ignore("reset-attention-mask", "with --no-create-attention-mask-in-dataloader");
  d.reset_attention_mask = mask || c.args.has("dataloader-inter-document-masking");
  d.eod_mask_loss = c.args.has("eod-mask-loss");
  if (c.traits().reads_sentences)
    for (bool* option : {&d.reset_position_ids, &d.reset_attention_mask, &d.eod_mask_loss, &d.sft, &d.fim_data})
      *option = false;
  if (c.traits().reads_sentences)
    for (const char* name : {"reset-position-ids", "reset-attention-mask", "dataloader-inter-document-masking",
                             "eod-mask-loss", "sft", "fim-data"})
      c.ignore(name, "of pretrain_gpt");
  d.mask_prob = c.args.number("mask-prob");
  d.short_seq_prob = c.args.number("short-seq-prob");
  if (c.args.has("dataloader-type")) d.dataloader_type = c.args.text("dataloader-type");
  if (d.dataloader_type == "external") c.miss("dataloader-type", "external data loader");
  if (d.dataloader_type == "cyclic") d.cyclic_batch = c.run.train.micro_batch_size;
  d.prefetch = product(2, c.args.integer("num-workers"));  // two batches per worker
  fill_in_middle(c);
}

void translate_tokenizer(Translation& c) {
  DataConfig& d = c.run.data;
  std::string type = c.args.text("tokenizer-type");
  if (type.empty()) type = c.traits().reads_sentences ? "BertWordPieceLowerCase" : "GPT2BPETokenizer";
  d.tokenizer_type = type;
  if (c.args.has("vocab-size")) c.run.model.vocab_size = c.args.integer("vocab-size");
  if (type == "MultimodalTokenizer" || type == "NullMultimodalTokenizer" || type == "SFTTokenizer")
    c.miss("tokenizer-type", type == "SFTTokenizer" ? "named prompt formats" : "multi-modal models");
  const bool by_files = type == "GPT2BPETokenizer" || type.starts_with("BertWordPiece");
  if (type == "NullTokenizer") {
    c.require(c.args.has("vocab-size"), "--tokenizer-type NullTokenizer needs --vocab-size.", "none",
              "--vocab-size 50257");
    d.tokenizer = concat(c.run.model.vocab_size - 1);  // the last number ends documents
    c.run.model.vocab_size = 0;
    for (const char* name : {"tokenizer-model", "vocab-file", "merge-file"}) c.ignore(name, "with NullTokenizer");
  } else if (by_files) {
    const std::string vocabulary = c.args.text("vocab-file"), merges = c.args.text("merge-file");
    const bool pair = type == "GPT2BPETokenizer" && !merges.empty();
    d.tokenizer = pair ? vocabulary + "," + merges : vocabulary;
    if (!pair) c.ignore("merge-file", "with " + type);
    c.ignore("tokenizer-model", "with " + type);
  } else {
    d.tokenizer = c.args.text("tokenizer-model");
    c.ignore("vocab-file", "with " + type);
    c.ignore("merge-file", "with " + type);
  }
  if (type.starts_with("BertWordPiece"))
    d.vocab_extra_ids = c.args.integer("vocab-extra-ids");
  else if (type == "SentencePieceTokenizer" && c.args.integer("vocab-extra-ids") > 0)
    c.miss("vocab-extra-ids", "sentinels behind a SentencePiece model");
  else
    c.ignore("vocab-extra-ids", "with " + type);
  if (d.sft) c.miss("tiktoken-pattern", "other patterns with --sft");
}

/// What data-parallel ranks share: with Megatron-FSDP what its strategy says, with PyTorch's FSDP2 all or, where
/// parameters stay whole after the forward pass, all but these.
void full_sharding(Translation& c, OptimizerConfig& o) {
  const bool megatron = c.args.has("use-megatron-fsdp"), torch = c.args.has("use-torch-fsdp2");
  if (!megatron) c.ignore("data-parallel-sharding-strategy", "of --use-megatron-fsdp");
  if (!torch) c.ignore("torch-fsdp2-no-reshard-after-forward", "of --use-torch-fsdp2");
  if (megatron && torch) return c.forbid_both("use-megatron-fsdp", "use-torch-fsdp2");
  if (megatron) {
    o.data_parallel_sharding_strategy = c.args.text("data-parallel-sharding-strategy");
    o.use_distributed_optimizer = o.data_parallel_sharding_strategy != "no_shard";
  }
  if (!torch) return;
  c.forbid_both("use-torch-fsdp2", "use-distributed-optimizer");
  const bool whole = c.args.has("torch-fsdp2-no-reshard-after-forward");
  o.data_parallel_sharding_strategy = whole ? "optim_grads" : "optim_grads_params";
  o.use_distributed_optimizer = o.overlap_grad_reduce = o.overlap_param_gather = true;
}

void translate_optimizer(Translation& c) {
  OptimizerConfig& o = c.run.optimizer;
  o.name = c.args.text("optimizer");
  if (o.name == "muon" || o.name == "dist_muon") {
    muon(c, o);
  } else {
    if (o.name != "adam" && o.name != "sgd" && o.name != "lion") {
      c.miss("optimizer", concat(o.name, " as Megatron-LM has it"));
      o.name = "adam";
    }
    for (const char* name : kOfMuon) c.ignore(name, "of --optimizer muon");
  }
  o.adam_beta1 = c.args.number("adam-beta1");
  o.adam_beta2 = c.args.number("adam-beta2");
  o.adam_eps = c.args.number("adam-eps");
  o.sgd_momentum = c.args.number("sgd-momentum");
  o.lion_beta1 = c.args.number("lion-beta1");
  o.lion_beta2 = c.args.number("lion-beta2");
  o.weight_decay = c.args.number("weight-decay");
  const bool norms = c.args.has("apply-wd-to-qk-layernorm") || c.args.has("no-weight-decay-cond-type");
  if (norms && c.run.model.qk_layernorm) o.wd_mult = {"*.q_layernorm.*=1", "*.k_layernorm.*=1"};
  if (!c.run.model.qk_layernorm)
    for (const char* name : {"apply-wd-to-qk-layernorm", "no-weight-decay-cond-type"})
      c.ignore(name, "without --qk-layernorm");
  o.clip_grad = c.args.number("clip-grad");
  gradients(c, o);
  if (c.run.train.dtype == "fp16" && c.args.has("loss-scale")) o.loss_scale = c.args.number("loss-scale");
  o.initial_loss_scale = c.args.number("initial-loss-scale");
  o.min_loss_scale = c.args.number("min-loss-scale");
  o.loss_scale_window = static_cast<std::int64_t>(std::clamp(c.args.number("loss-scale-window"), 0.0, 0x1p53));
  o.hysteresis = c.args.integer("hysteresis");
  if (c.run.train.dtype != "fp16") c.ignore("loss-scale", "without --fp16");
  if (c.args.has("ddp-bucket-size")) o.bucket_size = c.args.integer("ddp-bucket-size");
  o.overlap_grad_reduce = c.args.has("overlap-grad-reduce");
  o.use_distributed_optimizer = c.args.has("use-distributed-optimizer") || c.args.text("optimizer") == "dist_muon";
  o.overlap_param_gather = c.args.has("overlap-param-gather");
  full_sharding(c, o);
  c.require(!o.overlap_param_gather || o.use_distributed_optimizer,
            "--overlap-param-gather needs --use-distributed-optimizer.", "none", "--use-distributed-optimizer");
  c.require(!o.overlap_param_gather || o.overlap_grad_reduce, "--overlap-param-gather needs --overlap-grad-reduce.",
            "none", "--overlap-grad-reduce");
}

namespace {

/// Over `samples`, the whole run.
void growing_weight_decay(Translation& c, std::int64_t samples) {
  ScheduleConfig& s = c.run.schedule;
  s.weight_decay_incr_style = c.args.text("weight-decay-incr-style");
  const bool grows = s.weight_decay_incr_style != "constant";
  for (const char* name : {"start-weight-decay", "end-weight-decay"})
    c.require(c.is_saved() || c.args.has(name) == grows,
              concat("--", name, grows ? " must be given with" : " needs a growth, not", " --weight-decay-incr-style ",
                     s.weight_decay_incr_style, "."),
              grows ? "none" : c.args.text(name),
              grows ? concat("--", name, " 0.1")
                    : concat("--weight-decay-incr-style linear, or --weight-decay ", c.args.text(name)));
  if (!grows) return;
  if (c.args.has("start-weight-decay")) s.start_weight_decay = c.args.number("start-weight-decay");
  if (c.args.has("end-weight-decay")) s.end_weight_decay = c.args.number("end-weight-decay");
  s.weight_decay_incr_samples = samples;
}

}  // namespace

void translate_schedule(Translation& c) {
  ScheduleConfig& s = c.run.schedule;
  c.require(c.args.has("lr"), "--lr must be given.", "none", concat("--lr ", needed_example("lr")));
  s.lr = c.args.has("lr") ? c.args.number("lr") : 1;
  s.min_lr = c.args.number("min-lr");
  s.lr_warmup_init = c.args.number("lr-warmup-init");
  s.lr_decay_style = c.args.text("lr-decay-style");
  s.lr_wsd_decay_style = c.args.text("lr-wsd-decay-style");
  if (c.args.has("decoupled-lr")) s.decoupled_lr = c.args.number("decoupled-lr");
  if (c.args.has("decoupled-min-lr")) s.decoupled_min_lr = c.args.number("decoupled-min-lr");
  if (s.decoupled_lr <= 0) c.ignore("decoupled-min-lr", "without --decoupled-lr");
  const std::int64_t batch = c.run.train.global_batch_size;
  const bool samples = c.args.has("train-samples");
  const auto in_samples = [&](const char* iterations, const char* in, std::int64_t otherwise) {
    if (c.is_saved()) {  // either, whatever the run's length is given in
      if (const std::int64_t saved = c.args.text(in).empty() ? 0 : c.args.integer(in); saved > 0) return saved;
      return c.args.text(iterations).empty() ? otherwise : product(c.args.integer(iterations), batch);
    }
    const char* const counts = samples ? in : iterations;
    const char* const other = samples ? iterations : in;
    const std::int64_t given = c.args.text(other).empty() ? 0 : c.args.integer(other);
    const std::int64_t size = std::max<std::int64_t>(1, batch);
    const std::int64_t converted = samples ? product(given, size) : given / size + (given % size > 0 ? 1 : 0);
    c.require(!c.args.has(other) || c.args.text(other) == megatron_flag(other)->default_value,
              concat("--", other, " counts otherwise than --", samples ? "train-samples." : "train-iters."),
              concat("--", other, " ", c.args.text(other)), concat("--", counts, " ", converted));
    if (c.args.text(counts).empty()) return otherwise;
    return samples ? c.args.integer(counts) : product(c.args.integer(counts), batch);
  };
  const std::int64_t whole = samples ? c.args.integer("train-samples") : product(c.run.train.train_iters, batch);
  s.lr_decay_samples = in_samples("lr-decay-iters", "lr-decay-samples", whole);
  s.lr_wsd_decay_samples = in_samples("lr-wsd-decay-iters", "lr-wsd-decay-samples", 0);
  s.lr_warmup_samples = in_samples("lr-warmup-iters", "lr-warmup-samples", 0);
  growing_weight_decay(c, whole);
  if (s.lr_decay_style != "constant" && s.lr_warmup_samples > 0 && s.lr_warmup_samples >= s.lr_decay_samples &&
      !c.is_saved()) {
    const std::int64_t unit = samples ? 1 : std::max<std::int64_t>(1, batch);
    const char* const length = samples ? "samples" : "iters";
    c.require(false, "the warm-up must end before the decay does.",
              concat("--lr-warmup-", length, " ", s.lr_warmup_samples / unit, ", decay ", s.lr_decay_samples / unit),
              concat("--lr-warmup-", length, " ", s.lr_decay_samples / unit / 10));
  }
  if (!c.args.has("lr-warmup-fraction")) return;
  s.lr_warmup_fraction = c.args.number("lr-warmup-fraction");
  c.require(s.lr_warmup_samples == 0, "--lr-warmup-fraction excludes other lengths of the warm-up.",
            concat(s.lr_warmup_samples, " samples"), "leave --lr-warmup-fraction out");
}

/// There, microbatches that are not among the N recompute every layer, whatever the method says; with 0 that is all.
void translate_partial_recomputation(Translation& c) {
  const char* const flag = "num-microbatches-with-partial-activation-checkpoints";
  if (!c.args.has(flag)) return;
  if (c.run.parallel.pp == 1) return c.ignore(flag, "without a pipeline");
  TrainConfig& t = c.run.train;
  t.recompute_partial_microbatches = c.args.integer(flag);
  if (t.recompute != "full" || t.recompute_partial_microbatches > 0 || t.recompute_method != "block") return;
  t.recompute_method = "uniform";
  t.recompute_num_layers = 1;
}

void translate_recomputation(Translation& c) {
  TrainConfig& t = c.run.train;
  const std::string asked = c.args.has("recompute-activations") ? "selective" : c.args.text("recompute-granularity");
  t.recompute = asked.empty() ? "none" : asked;
  if (t.recompute == "full") {
    if (c.args.has("recompute-method")) t.recompute_method = c.args.text("recompute-method");
    if (c.args.has("recompute-num-layers")) t.recompute_num_layers = c.args.integer("recompute-num-layers");
    t.distribute_saved_activations = c.args.has("distribute-saved-activations");
  } else {
    for (const char* name : {"recompute-method", "recompute-num-layers", "distribute-saved-activations"})
      c.ignore(name, "without --recompute-granularity full");
  }
  if (t.recompute == "none")
    c.ignore("num-microbatches-with-partial-activation-checkpoints", "without --recompute-granularity");
  else
    translate_partial_recomputation(c);
  if (c.args.has("recompute-modules")) t.recompute_modules = c.args.list("recompute-modules");
  for (const std::string& module : t.recompute_modules)
    if (t.recompute == "selective" && module != "core_attn" && module != "mlp" && module != "layernorm")
      return c.miss("recompute-modules", concat("recomputation of ", module));
  if (t.recompute != "selective") {
    t.recompute_modules = {"core_attn"};
    c.ignore("recompute-modules", "without --recompute-granularity selective");
  }
}

namespace {

/// Checkpoints that the next one replaces: in a folder of each node, or with type global of all.
void non_persistent(Translation& c, bool saves) {
  CheckpointConfig& saved = c.run.checkpoint;
  if (!saves || !c.args.has("non-persistent-save-interval")) {
    for (const char* name : {"non-persistent-save-interval", "non-persistent-ckpt-type",
                             "non-persistent-global-ckpt-dir", "non-persistent-local-ckpt-dir", "replication"})
      c.ignore(name, saves ? "without --non-persistent-save-interval" : "without --save");
    return;
  }
  saved.memory_interval = c.args.integer("non-persistent-save-interval");
  c.require(saved.memory_interval > 0, "--non-persistent-save-interval must be above 0.",
            c.args.text("non-persistent-save-interval"), "--non-persistent-save-interval 100");
  const bool global = c.args.text("non-persistent-ckpt-type") == "global";
  const std::string folder = c.args.text(global ? "non-persistent-global-ckpt-dir" : "non-persistent-local-ckpt-dir");
  if (!folder.empty()) saved.memory_folder = folder;
  c.require(!global || !folder.empty(), "--non-persistent-ckpt-type global must be told a folder that is there.",
            "no --non-persistent-global-ckpt-dir", "--non-persistent-global-ckpt-dir FOLDER");
  c.ignore(global ? "non-persistent-local-ckpt-dir" : "non-persistent-global-ckpt-dir",
           concat(global ? "with" : "without", " --non-persistent-ckpt-type global"));
  saved.memory_neighbours = c.args.has("replication");
}

}  // namespace

void translate_checkpoints(Translation& c) {
  CheckpointConfig& saved = c.run.checkpoint;
  saved.load = c.args.text("load");
  saved.finetune = c.args.has("finetune") && !saved.load.empty();
  const std::string pretrained = c.args.text("pretrained-checkpoint");
  if (c.args.has("ckpt-step") && !(saved.load.empty() && pretrained.empty()))
    saved.ckpt_step = c.args.integer("ckpt-step");
  else
    c.ignore("ckpt-step", "without --load");
  if (c.args.has("override-ckpt-iteration") && !saved.load.empty())
    saved.override_ckpt_iteration = c.args.integer("override-ckpt-iteration");
  else
    c.ignore("override-ckpt-iteration", "without --load");
  saved.no_load_optim = c.args.has("no-load-optim") && !saved.load.empty();
  saved.use_checkpoint_schedule = c.args.has("use-checkpoint-opt_param-scheduler") && !saved.load.empty();
  saved.use_checkpoint_args = c.args.has("use-checkpoint-args") && !saved.load.empty();
  if (saved.load.empty())
    for (const char* name : {"finetune", "no-load-optim", "exit-on-missing-checkpoint", "use-checkpoint-args",
                             "use-checkpoint-opt_param-scheduler"})
      c.ignore(name, "without --load");
  saved.save = c.args.text("save");
  const bool saves = c.args.has("save");
  if (saves) {
    saved.save_interval = c.needed("save-interval");
    c.require(saved.save_interval > 0, "--save-interval must be above 0.", c.args.text("save-interval"),
              "--save-interval 1000");
    c.run.train.out = saved.save;
  } else {
    saved.save_interval = -1;
    c.run.train.out = "runs/" + c.program;
    for (const char* name : {"save-interval", "save-retain-interval", "async-save"}) c.ignore(name, "without --save");
  }
  // All are kept, or the last and every multiple.
  const bool some = saves && c.args.has("save-retain-interval");
  saved.keep_last = some ? 1 : 0;
  saved.keep_every = some ? c.args.integer("save-retain-interval") : 0;
  const bool legacy = c.args.text("ckpt-format") == "torch";
  saved.async_save = saves && c.args.has("async-save") && (legacy || c.args.has("use-persistent-ckpt-worker"));
  if (!saved.async_save) c.ignore("async-save", "without --use-persistent-ckpt-worker");
  non_persistent(c, saves);
  c.result.pretrained = pretrained;
  if (!c.result.pretrained.empty() && saved.load.empty()) {
    saved.load = c.result.pretrained;
    saved.finetune = true;
  }
  c.result.load_must_exist = c.args.has("exit-on-missing-checkpoint");
}

void translate_evaluation(Translation& c) {
  TrainConfig& t = c.run.train;
  t.eval_iters = c.args.integer("eval-iters");
  if (c.args.has("eval-interval") && (t.eval_iters > 0 || c.run.data.full_validation))
    t.eval_interval = c.args.integer("eval-interval");
  else
    c.ignore("eval-interval", "with --eval-iters 0");
  if (c.args.has("start-eval-at-iter")) t.start_eval_at_iter = c.args.integer("start-eval-at-iter");
  if (t.eval_interval == 0) c.ignore("start-eval-at-iter", "without --eval-interval");
  if (c.args.has("eval-global-batch-size")) t.eval_global_batch_size = c.args.integer("eval-global-batch-size");
  t.skip_train = c.args.has("skip-train");
}

}  // namespace megatron::config
