#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "megatron/config/meaning.h"
#include "megatron/config/optimizers.h"

// The options of run_config.h that say how weights are updated and how the learning rate goes.
namespace megatron::config {

struct OptimizerConfig {
  std::string name = "adam";
#define OPTIMIZER_OPTION(name, type, option, default_value, bounds, help, flag) type option = default_value;
#include "megatron/config/optimizers.def"
  bool muon_nesterov = true;
  std::string muon_scale_mode = "spectral";
  std::string muon_coefficient_type = "simple";
  bool muon_split_qkv = true;
  bool muon_split_gated = true;
  double weight_decay = 0.01;
  bool decoupled_weight_decay = true;
  std::vector<std::string> lr_mult = {};
  std::vector<std::string> wd_mult = {};
  double clip_grad = 1.0;
  std::string clip_norm = "l2";
  std::string grad_dtype = "fp32";
  std::string state_dtype = "fp32";
  bool stochastic_rounding = false;
  double loss_scale = 0;
  double initial_loss_scale = 4294967296.0;
  double min_loss_scale = 1;
  std::int64_t loss_scale_window = 1000;
  std::int64_t hysteresis = 2;
  std::int64_t bucket_size = 0;
  bool overlap_grad_reduce = true;
  bool use_distributed_optimizer = false;
  std::string data_parallel_sharding_strategy = "optim";
  bool overlap_param_gather = true;

  void visit(auto& v) {
    v("name", name, optimizers_help(), "optimizer", Choices(optimizer_names()), Common());
#define OPTIMIZER_OPTION(name, type, option, default_value, bounds, help, flag) \
  v(#option, option, help, flag, when("optimizer.name", readers_of("optimizer." #option)));
#include "megatron/config/optimizers.def"
    const auto of_muon = [] { return when("optimizer.name", std::vector<std::string>{"muon"}); };
    v("muon_nesterov", muon_nesterov, "muon: Nesterov's momentum; false: the plain one.", "muon-nesterov", of_muon());
    v("muon_scale_mode", muon_scale_mode,
      "muon: factor of a matrix by its shape: spectral: sqrt(max(rows, columns)); unit_rms_norm: sqrt(rows / columns); "
      "shape_scaling: that, but at least 1.",
      "muon-scale-mode", Choices({"spectral", "unit_rms_norm", "shape_scaling"}), of_muon());
    v("muon_coefficient_type", muon_coefficient_type,
      "muon: coefficients of the steps of Newton and Schulz: simple: Jordan's, the same in each step; the others "
      "change from step to step.",
      "muon-coefficient-type", Choices({"simple", "quintic", "polar_express", "cans", "aol", "deepseekv4"}), of_muon());
    v("muon_split_qkv", muon_split_qkv, "muon: queries, keys and values are matrices of their own; false: one.",
      of_muon());
    v("muon_split_gated", muon_split_gated,
      "muon: the gate and the other half of a gated MLP are matrices of their own; false: one.", of_muon());
    const When decays = when("optimizer.weight_decay") || unless("schedule.weight_decay_incr_style", {"constant"});
    v("weight_decay", weight_decay, "Weight decay; biases and norms have none.", "weight-decay",
      when("schedule.weight_decay_incr_style", {"constant"}), Common());
    v("decoupled_weight_decay", decoupled_weight_decay,
      "Decay the weights themselves (AdamW); false: add the decay to the gradient (L2), but for the matrices of muon.",
      "decoupled-weight-decay", decays);
    v("lr_mult", lr_mult,
      "Learning rate of some parameters, PATTERN=FACTOR each: *.bias=2. The last pattern that matches a name counts.");
    v("wd_mult", wd_mult, "Weight decay of some parameters, PATTERN=FACTOR each: embedding.*=0 or *.bias=1.", decays);
    v("clip_grad", clip_grad, "Maximum global gradient norm; 0: no clipping.", "clip-grad", Common());
    v("clip_norm", clip_norm,
      "Norm that is clipped: l2, inf (the largest magnitude), or the p of another, such as 1 or 3.",
      when("optimizer.clip_grad"));
    v("grad_dtype", grad_dtype, "Data type in which gradients are accumulated and reduced: fp32 or train.dtype.",
      Choices({"fp32", "bf16", "fp16"}));
    v("state_dtype", state_dtype, "Data type of moments; fp32 means fp64 with train.dtype fp64.",
      Choices({"fp32", "bf16"}));
    v("stochastic_rounding", stochastic_rounding,
      "Round what is stored in 16 bits at random, the same in every layout.");
    v("loss_scale", loss_scale, "fp16: constant factor on the loss; 0: dynamic.", "loss-scale");
    v("initial_loss_scale", initial_loss_scale, "fp16: dynamic loss scale at the start.", "initial-loss-scale",
      when("train.dtype", {"fp16"}), unless("optimizer.loss_scale"));
    v("min_loss_scale", min_loss_scale, "fp16: smallest dynamic loss scale.", "min-loss-scale",
      when("train.dtype", {"fp16"}), unless("optimizer.loss_scale"));
    v("loss_scale_window", loss_scale_window, "fp16: steps without overflow after which the scale doubles.",
      "loss-scale-window", when("train.dtype", {"fp16"}), unless("optimizer.loss_scale"));
    v("hysteresis", hysteresis, "fp16: overflows that halve the scale.", "hysteresis", when("train.dtype", {"fp16"}),
      unless("optimizer.loss_scale"));
    v("bucket_size", bucket_size,
      "Elements of a gradient bucket; 0: max(40 M, 1 M x dp), with optim_grads and optim_grads_params a layer.",
      "ddp-bucket-size");
    v("overlap_grad_reduce", overlap_grad_reduce, "Reduce each bucket while backward continues.",
      "overlap-grad-reduce");
    v("use_distributed_optimizer", use_distributed_optimizer,
      "Split masters, moments and updates over the data-parallel ranks.", "use-distributed-optimizer", Common());
    v("data_parallel_sharding_strategy", data_parallel_sharding_strategy,
      "With use_distributed_optimizer: optim is ZeRO stage 1; optim_grads, gradients too, stage 2 (less memory; each "
      "microbatch is reduced); optim_grads_params, parameters too, stage 3 (each layer is gathered when it is "
      "computed).",
      "data-parallel-sharding-strategy", when("optimizer.use_distributed_optimizer"),
      Choices({"no_shard", "optim", "optim_grads", "optim_grads_params"}));
    v("overlap_param_gather", overlap_param_gather,
      "With use_distributed_optimizer: gather each bucket of updated parameters during the next forward pass; with "
      "optim_grads_params each layer while the one before it is computed.",
      "overlap-param-gather", when("optimizer.use_distributed_optimizer"));
  }
};

struct ScheduleConfig {
  double lr = 3e-4;
  double min_lr = 0;
  double decoupled_lr = 0;
  double decoupled_min_lr = -1;
  double lr_warmup_init = 0;
  std::string lr_decay_style = "cosine";
  std::int64_t lr_decay_samples = 0;
  std::int64_t lr_warmup_samples = 0;
  double lr_warmup_fraction = 0;
  std::int64_t lr_wsd_decay_samples = 0;
  std::string lr_wsd_decay_style = "exponential";
  std::string weight_decay_incr_style = "constant";
  double start_weight_decay = 0;
  double end_weight_decay = 0;
  std::int64_t weight_decay_incr_samples = 0;
  std::vector<std::int64_t> rampup_batch_size;
  std::string step_batch_size;

  void visit(auto& v) {
    v("lr", lr, "Peak learning rate.", "lr", Common());
    v("min_lr", min_lr, "Learning rate after the decay.", "min-lr", unless("schedule.lr_decay_style", {"constant"}),
      Common());
    v("decoupled_lr", decoupled_lr,
      "Peak learning rate of the word embedding and the output layer's matrix; 0: that of the others.", "decoupled-lr",
      OnlyInTraining());
    v("decoupled_min_lr", decoupled_min_lr, "Their learning rate after the decay; below 0: min_lr.", "decoupled-min-lr",
      when("schedule.decoupled_lr"), unless("schedule.lr_decay_style", {"constant"}), OnlyInTraining());
    v("lr_warmup_init", lr_warmup_init, "Learning rate at the start of warm-up.", "lr-warmup-init",
      when("schedule.lr_warmup_samples") || when("schedule.lr_warmup_fraction"));
    v("lr_decay_style", lr_decay_style, "Shape of the learning rate's decay.", "lr-decay-style",
      Choices({"constant", "linear", "cosine", "inverse-square-root", "WSD"}), Common());
    v("lr_decay_samples", lr_decay_samples, "Samples until min_lr; 0: the whole run.", "lr-decay-samples",
      unless("schedule.lr_decay_style", {"constant"}) || when("schedule.lr_warmup_fraction"));
    v("lr_warmup_samples", lr_warmup_samples, "Samples of linear warm-up.", "lr-warmup-samples", Common());
    v("lr_warmup_fraction", lr_warmup_fraction, "Warm-up as a share of the decay; used where lr_warmup_samples is 0.",
      "lr-warmup-fraction", unless("schedule.lr_warmup_samples"));
    v("lr_wsd_decay_samples", lr_wsd_decay_samples, "WSD: samples of the final decay.", "lr-wsd-decay-samples",
      when("schedule.lr_decay_style", {"WSD"}));
    v("lr_wsd_decay_style", lr_wsd_decay_style, "WSD: shape of the final decay.", "lr-wsd-decay-style",
      when("schedule.lr_decay_style", {"WSD"}), Choices({"linear", "cosine", "exponential", "minus_sqrt"}));
    const When grows = unless("schedule.weight_decay_incr_style", {"constant"});
    v("weight_decay_incr_style", weight_decay_incr_style,
      "How weight decay goes from start_weight_decay to end_weight_decay; constant: it is optimizer.weight_decay.",
      "weight-decay-incr-style", Choices({"constant", "linear", "cosine"}), OnlyInTraining());
    v("start_weight_decay", start_weight_decay, "Weight decay of the first step.", "start-weight-decay", grows,
      OnlyInTraining());
    v("end_weight_decay", end_weight_decay, "Weight decay after the growth.", "end-weight-decay", grows,
      OnlyInTraining());
    v("weight_decay_incr_samples", weight_decay_incr_samples, "Samples until end_weight_decay; 0: the whole run.",
      grows, OnlyInTraining());
    v("rampup_batch_size", rampup_batch_size,
      "start,increment,samples: grow the global batch from `start` over `samples`.", "rampup-batch-size",
      OnlyInTraining());
    v("step_batch_size", step_batch_size,
      "Global batch by the tokens trained on, TOKENS:SAMPLES each: '0:768 250B:1536' (suffixes K, M, B, T); empty: "
      "train.global_batch_size.",
      "step-batch-size-schedule", OnlyInTraining());
  }
};

}  // namespace megatron::config
