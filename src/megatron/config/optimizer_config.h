#pragma once
#include <cstdint>
#include <string>
#include <vector>

// The options of run_config.h that say how weights are updated and how the learning rate goes.
namespace megatron::config {

struct OptimizerConfig {
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double adam_eps = 1e-8;
  double weight_decay = 0.01;
  double clip_grad = 1.0;
  std::string clip_norm = "l2";
  std::int64_t bucket_size = 0;
  bool overlap_grad_reduce = true;

  void visit(auto& v) {
    v("adam_beta1", adam_beta1, "Decay of the first moment.", "adam-beta1");
    v("adam_beta2", adam_beta2, "Decay of the second moment.", "adam-beta2");
    v("adam_eps", adam_eps, "Added to the root of the second moment.", "adam-eps");
    v("weight_decay", weight_decay, "Decoupled weight decay; biases and norms have none.", "weight-decay");
    v("clip_grad", clip_grad, "Largest global gradient norm; 0: no clipping.", "clip-grad");
    v("clip_norm", clip_norm, "Norm that is clipped: l2 or inf.");
    v("bucket_size", bucket_size, "Elements of a gradient bucket; 0: max(40 M, 1 M x dp).", "ddp-bucket-size");
    v("overlap_grad_reduce", overlap_grad_reduce, "Reduce each bucket while backward goes on.", "overlap-grad-reduce");
  }
};

struct ScheduleConfig {
  double lr = 3e-4;
  double min_lr = 0;
  double lr_warmup_init = 0;
  std::string lr_decay_style = "cosine";
  std::int64_t lr_decay_samples = 0;
  std::int64_t lr_warmup_samples = 0;
  double lr_warmup_fraction = 0;
  std::int64_t lr_wsd_decay_samples = 0;
  std::string lr_wsd_decay_style = "exponential";
  std::vector<std::int64_t> rampup_batch_size;

  void visit(auto& v) {
    v("lr", lr, "Peak learning rate.", "lr");
    v("min_lr", min_lr, "Learning rate after the decay.", "min-lr");
    v("lr_warmup_init", lr_warmup_init, "Learning rate at the start of warm-up.", "lr-warmup-init");
    v("lr_decay_style", lr_decay_style, "constant, linear, cosine, inverse-square-root or WSD.", "lr-decay-style");
    v("lr_decay_samples", lr_decay_samples, "Samples until min_lr; 0: the whole run.", "lr-decay-samples");
    v("lr_warmup_samples", lr_warmup_samples, "Samples of linear warm-up.", "lr-warmup-samples");
    v("lr_warmup_fraction", lr_warmup_fraction, "Warm-up as a share of the decay; used where lr_warmup_samples is 0.",
      "lr-warmup-fraction");
    v("lr_wsd_decay_samples", lr_wsd_decay_samples, "WSD: samples of the final decay.", "lr-wsd-decay-samples");
    v("lr_wsd_decay_style", lr_wsd_decay_style, "WSD: linear, cosine, exponential or minus_sqrt.",
      "lr-wsd-decay-style");
    v("rampup_batch_size", rampup_batch_size,
      "start,increment,samples: grow the global batch from `start` over `samples`.", "rampup-batch-size");
  }
};

}  // namespace megatron::config
