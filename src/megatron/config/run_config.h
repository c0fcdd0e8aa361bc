#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "megatron/config/checkpoint_config.h"
#include "megatron/config/model_config.h"
#include "megatron/config/optimizer_config.h"
#include "megatron/config/parallel_config.h"
#include "megatron/config/train_config.h"

// Every option of a training run, declared once: field, default, help text, and Megatron-LM's flag where it has one.
// Flags, TOML, --help, docs/config.md and the saved recipe are visitors over `visit` (options.h). Sections with many
// options have headers of their own.
namespace megatron::config {

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
    v("optimizer", optimizer, "Update rule, precision, clipping, gradient reduction.");
    v("schedule", schedule, "Learning rate and batch size over the run.");
    v("train", train, "Length, batch, precision, evaluation.");
    v("checkpoint", checkpoint, "Saving and resuming.");
    v("log", log, "What is printed and written.");
  }
};

}  // namespace megatron::config
