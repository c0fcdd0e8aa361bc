#pragma once
#include <cstdint>
#include <string>
#include <vector>

// The options of run_config.h that say what a run reads and how samples are made of it.
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

}  // namespace megatron::config
