#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "megatron/config/parallel_config.h"

// Every option of a training run, declared once: field, default, help text, and Megatron-LM's flag where it has one.
// Flags, TOML, --help, docs/config.md and the saved recipe are visitors over `visit` (options.h).
namespace megatron::config {

struct ModelConfig {
  std::int64_t num_layers = 4;
  std::int64_t hidden_size = 256;
  std::int64_t num_attention_heads = 4;
  std::int64_t ffn_hidden_size = 0;
  std::int64_t max_position_embeddings = 0;
  std::int64_t vocab_size = 0;
  std::int64_t make_vocab_size_divisible_by = 128;
  bool untie_embeddings_and_output_weights = false;
  double layernorm_epsilon = 1e-5;
  std::string gelu = "tanh";
  double init_method_std = 0.02;
  double hidden_dropout = 0.1;
  double attention_dropout = 0.1;

  void visit(auto& v) {
    v("num_layers", num_layers, "Transformer layers.", "num-layers");
    v("hidden_size", hidden_size, "Width of the residual stream.", "hidden-size");
    v("num_attention_heads", num_attention_heads, "Attention heads; hidden_size must divide by them.",
      "num-attention-heads");
    v("ffn_hidden_size", ffn_hidden_size, "Width of the MLP; 0: 4 x hidden_size.", "ffn-hidden-size");
    v("max_position_embeddings", max_position_embeddings, "Learned positions; 0: data.seq_length.",
      "max-position-embeddings");
    v("vocab_size", vocab_size, "Tokens of the vocabulary; 0: the tokenizer's.", "vocab-size");
    v("make_vocab_size_divisible_by", make_vocab_size_divisible_by,
      "Rows of the embedding are padded to a multiple of this; padding never takes part.",
      "make-vocab-size-divisible-by");
    v("untie_embeddings_and_output_weights", untie_embeddings_and_output_weights,
      "Give the output layer a matrix of its own.", "untie-embeddings-and-output-weights");
    v("layernorm_epsilon", layernorm_epsilon, "Added to the variance in layer normalization.", "norm-epsilon");
    v("gelu", gelu, "tanh (Megatron's fused bias-GELU) or erf (exact).");
    v("init_method_std", init_method_std, "Standard deviation of initial weights; output layers: / sqrt(2 num_layers).",
      "init-method-std");
    v("hidden_dropout", hidden_dropout, "Dropout of embeddings and residual branches.", "hidden-dropout");
    v("attention_dropout", attention_dropout, "Dropout of attention probabilities.", "attention-dropout");
  }
};

struct DataConfig {
  std::vector<std::string> data_path;
  std::string tokenizer;
  std::string split = "969,30,1";
  std::int64_t seq_length = 128;
  std::string data_cache_path;
  bool reset_position_ids = false;
  bool reset_attention_mask = false;
  bool eod_mask_loss = false;

  void visit(auto& v) {
    v("data_path", data_path, "Prefix of the .bin/.idx pair to train on.", "data-path");
    v("tokenizer", tokenizer, "Tokenizer folder or file (tokenizer.json; encoder.json + vocab.bpe).", "tokenizer-model",
      "tokenizer");
    v("split", split, "Shares of documents for training, validation and test.", "split");
    v("seq_length", seq_length, "Tokens of a sample.", "seq-length");
    v("data_cache_path", data_cache_path,
      "Folder of the sample indices; empty: cache/GPTDataset_indices beside the data.", "data-cache-path");
    v("reset_position_ids", reset_position_ids, "Count positions from 0 again after each end of document.",
      "reset-position-ids");
    v("reset_attention_mask", reset_attention_mask, "Hide the documents before from attention.",
      "reset-attention-mask");
    v("eod_mask_loss", eod_mask_loss, "Leave end-of-document tokens out of the loss.", "eod-mask-loss");
  }
};

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

struct TrainConfig {
  std::string out = "runs/default";
  std::int64_t train_iters = 100;
  std::int64_t micro_batch_size = 1;
  std::int64_t global_batch_size = 0;
  std::int64_t eval_interval = 0;
  std::int64_t eval_iters = 10;
  std::uint64_t seed = 1234;
  std::string dtype = "fp32";
  double label_smoothing = 0;
  std::int64_t loss_chunk_tokens = 1024;
  bool recompute_gelu = true;
  std::string recompute = "none";
  std::string recompute_method = "uniform";
  std::int64_t recompute_num_layers = 0;
  std::vector<std::string> recompute_modules = {"core_attn"};
  bool distribute_saved_activations = false;
  std::string kernels = "auto";
  bool exit_on_nan = false;

  void visit(auto& v) {
    v("out", out, "The run's folder: recipe, metrics, checkpoints.");
    v("train_iters", train_iters, "Steps of the run.", "train-iters");
    v("micro_batch_size", micro_batch_size, "Samples a rank computes at once.", "micro-batch-size");
    v("global_batch_size", global_batch_size, "Samples of a step over all ranks; 0: micro_batch_size x dp.",
      "global-batch-size");
    v("eval_interval", eval_interval, "Steps between validations; 0: none.", "eval-interval");
    v("eval_iters", eval_iters, "Global batches of a validation.", "eval-iters");
    v("seed", seed, "Seed of weights, dropout and data order.", "seed");
    v("dtype", dtype, "fp32 or fp64.");
    v("label_smoothing", label_smoothing, "Share of the target spread over the vocabulary.", "label-smoothing");
    v("loss_chunk_tokens", loss_chunk_tokens, "Tokens whose logits are held at once by output layer and loss.");
    v("recompute_gelu", recompute_gelu, "Compute GELU again in the backward pass instead of keeping it.");
    v("recompute", recompute,
      "What backward computes again instead of keeping it: none, selective (modules) or full (layers).",
      "recompute-granularity");
    v("recompute_method", recompute_method,
      "full: uniform (groups of recompute_num_layers) or block (the first recompute_num_layers of a stage).",
      "recompute-method");
    v("recompute_num_layers", recompute_num_layers, "full: layers, see recompute_method; 0: uniform groups of one.",
      "recompute-num-layers");
    v("recompute_modules", recompute_modules, "selective: core_attn, mlp; layernorm is always computed again.",
      "recompute-modules");
    v("distribute_saved_activations", distribute_saved_activations,
      "full: split the inputs that are kept over the tp ranks.", "distribute-saved-activations");
    v("kernels", kernels, "Instruction set of the kernels: auto, avx512, avx2 or reference.");
    v("exit_on_nan", exit_on_nan, "End the run at a NaN or infinite loss or gradient instead of skipping the step.");
  }
};

struct CheckpointConfig {
  std::string load;
  std::string save;
  std::int64_t save_interval = 0;
  std::int64_t keep_last = 2;

  void visit(auto& v) {
    v("load", load, "Folder to start from while the run has no checkpoint of its own; empty: from new weights.",
      "load");
    v("save", save, "Folder of the checkpoints; empty: train.out/checkpoints.", "save");
    v("save_interval", save_interval, "Steps between checkpoints; 0: at the end alone.", "save-interval");
    v("keep_last", keep_last, "Checkpoints to keep; 0: all.");
  }
};

struct LogConfig {
  std::int64_t interval = 10;
  std::string progress = "auto";
  std::string trace;

  void visit(auto& v) {
    v("interval", interval, "Steps between console lines.", "log-interval");
    v("progress", progress, "Progress line with ETA: auto (on a terminal), on, off.");
    v("trace", trace,
      "File (.json) for the measured timeline of the run's last step, in Chrome's trace format; a picture of it beside "
      "the simulated one has the same name with .svg. Empty: none.");
  }
};

struct RunConfig {
  ModelConfig model;
  ParallelConfig parallel;
  DataConfig data;
  OptimizerConfig optimizer;
  ScheduleConfig schedule;
  TrainConfig train;
  CheckpointConfig checkpoint;
  LogConfig log;

  void visit(auto& v) {
    v("model", model, "The network.");
    v("parallel", parallel, "How ranks share the work.");
    v("data", data, "Text, tokenizer, samples.");
    v("optimizer", optimizer, "AdamW, clipping, gradient reduction.");
    v("schedule", schedule, "Learning rate and batch size over the run.");
    v("train", train, "Length, batch, precision, evaluation.");
    v("checkpoint", checkpoint, "Saving and resuming.");
    v("log", log, "What is printed and written.");
  }
};

}  // namespace megatron::config
