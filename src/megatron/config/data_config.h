#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "megatron/config/meaning.h"
#include "megatron/config/tables/model_kinds.h"

// The options of run_config.h that say what a run reads and how samples are made of it.
namespace megatron::config {

/// Help of options that name a tokenizer, and of those that name its kind.
inline constexpr const char* kTokenizerHelp =
    "Tokenizer folder or file (tokenizer.json; encoder.json + vocab.bpe; vocab.json + merges.txt; vocab.txt; .model; "
    ".tiktoken; .gguf), or the two files VOCAB,MERGES.";
inline constexpr const char* kTokenizerTypeHelp =
    "Megatron's name of the tokenizer's kind, such as GPT2BPETokenizer; empty: found out by itself. For NullTokenizer "
    "the tokenizer is how many numbers there are; left out, they and the end token are model.vocab_size.";

/// Fill-in-the-middle: data/samples/fill_in_middle.h.
struct FimConfig {
  double rate = 0.5;
  double spm_rate = 0.5;
  double fragment_rate = 0.5;
  std::string split_sample;
  std::string no_prefix;
  std::string prefix_token = "<fim_prefix>";
  std::string middle_token = "<fim_middle>";
  std::string suffix_token = "<fim_suffix>";
  std::string pad_token = "<fim_pad>";
  std::string eod_token = "<|endoftext|>";

  void visit(auto& v) {
    v("rate", rate, "Share of documents whose parts change places.", "fim-rate");
    v("spm_rate", spm_rate, "Of these, the share written suffix, prefix, middle; the others prefix, suffix, middle.",
      "fim-spm-rate");
    v("fragment_rate", fragment_rate, "Share of the fragments of a chosen document that are changed.",
      "fim-fragment-rate");
    v("split_sample", split_sample, "Token that separates fragments (files) of a document; empty: none does.",
      "fim-split-sample");
    v("no_prefix", no_prefix, "Documents and fragments that begin with this string stay as they are.", "fim-no-prefix");
    v("prefix_token", prefix_token, "Token before the prefix.", "fim-prefix-token");
    v("middle_token", middle_token, "Token before the middle.", "fim-middle-token");
    v("suffix_token", suffix_token, "Token before the suffix.", "fim-suffix-token");
    v("pad_token", pad_token, "Token that fills samples which have become shorter.", "fim-pad-token");
    v("eod_token", eod_token, "Token that ends documents.", "fim-eod-token");
  }
};

struct DataConfig {
  std::vector<std::string> data_path;
  bool mock_data = false;
  std::string data_args_path;
  std::vector<std::string> train_data_path;
  std::vector<std::string> valid_data_path;
  std::vector<std::string> test_data_path;
  std::string per_split_data_args_path;
  std::string tokenizer;
  std::string tokenizer_type;
  std::int64_t vocab_extra_ids = 0;
  std::string split = "969,30,1";
  std::int64_t seq_length = 128;
  std::int64_t decoder_seq_length = 0;
  std::string data_cache_path;
  bool multiple_validation_sets = false;
  bool full_validation = false;
  bool packed = false;
  bool sft = false;
  bool fim_data = false;
  bool reset_position_ids = false;
  bool reset_attention_mask = false;
  bool eod_mask_loss = false;
  double mask_prob = 0.15;
  double short_seq_prob = 0.1;
  std::int64_t index_samples = 0;
  std::string dataloader_type = "single";
  std::int64_t cyclic_batch = 1;
  std::int64_t prefetch = 8;

  void visit(auto& v) {
    v("data_path", data_path,
      "What to read, shared out by split: the prefix of a .bin/.idx pair; several; or weights and prefixes in turn: "
      "0.3 A 0.7 B.",
      "data-path", Affects::Samples, OnlyInTraining(), Common());
    v("mock_data", mock_data,
      "Samples without files, to try a layout: text that counts through the vocabulary. Without a tokenizer "
      "model.vocab_size says how many tokens there are.",
      "mock-data", Affects::Samples, OnlyInTraining());
    v("data_args_path", data_args_path, "File with the words of data_path.", "data-args-path", Affects::Samples,
      OnlyInTraining());
    v("train_data_path", train_data_path, "What to train on, all of it, written as data_path.", "train-data-path",
      Affects::Samples, OnlyInTraining());
    v("valid_data_path", valid_data_path, "What to validate on.", "valid-data-path", Affects::Samples,
      OnlyInTraining());
    v("test_data_path", test_data_path, "What to test on at the end of the run, where data.split does not say it.",
      "test-data-path", Affects::Samples, OnlyInTraining());
    v("per_split_data_args_path", per_split_data_args_path,
      "JSON file with the words of the three: {\"train\": […], \"valid\": […], \"test\": […]}.",
      "per-split-data-args-path", Affects::Samples, OnlyInTraining());
    v("tokenizer", tokenizer, kTokenizerHelp, "tokenizer-model", "tokenizer", Affects::Nothing, Common());
    v("tokenizer_type", tokenizer_type, kTokenizerTypeHelp, "tokenizer-type", Affects::Nothing);
    v("vocab_extra_ids", vocab_extra_ids,
      "Sentinels <extra_id_0>, <extra_id_1>, … that follow a WordPiece vocabulary, after [BOS] and [EOS] where it has "
      "none: what a T5 needs.",
      "vocab-extra-ids", Affects::Nothing, OnlyInTraining());
    v("split", split, "Shares of documents: training, validation, test.", "split", Affects::Samples,
      unless("data.train_data_path"), unless("data.per_split_data_args_path"), OnlyInTraining(), Common());
    v("seq_length", seq_length, "Tokens per sample; t5: per input of its encoder.", "seq-length", Affects::Samples,
      Common());
    v("decoder_seq_length", decoder_seq_length, "t5: tokens that its decoder writes; 0: a quarter of seq_length.",
      "decoder-seq-length", Affects::Samples, OnlyInTraining());
    v("data_cache_path", data_cache_path,
      "Folder of the sample indices; empty: cache/KIND_indices in the data's folder.", "data-cache-path",
      Affects::Nothing, RanksMayDiffer(), OnlyInTraining());
    v("multiple_validation_sets", multiple_validation_sets,
      "Validate on each dataset by itself instead of on their blend; weights have no meaning.",
      "multiple-validation-sets", when("train.eval_interval"), OnlyInTraining());
    v("full_validation", full_validation, "Validate on all samples of one pass instead of train.eval_iters batches.",
      "full-validation", when("train.eval_interval"), OnlyInTraining());
    v("packed", packed, "Samples of whole documents that do not see one another, best fit: data/samples/pack.h.",
      Affects::Samples, OnlyInTraining());
    v("sft", sft,
      "Paths are JSONL files of conversations ({\"messages\": …}), written by the chat template of the tokenizer's "
      "folder; the loss is on the assistant's turns alone. One conversation per sample; several with packed.",
      "sft", Affects::Samples, OnlyInTraining());
    v("fim_data", fim_data, "Fill-in-the-middle, as the section fim says.", "fim-data", Affects::Samples,
      OnlyInTraining());
    v("reset_position_ids", reset_position_ids, "Count positions from 0 again after each end of document.",
      "reset-position-ids", OnlyInTraining());
    v("reset_attention_mask", reset_attention_mask, "Hide the documents before from attention.", "reset-attention-mask",
      OnlyInTraining());
    v("eod_mask_loss", eod_mask_loss, "Leave end-of-document tokens out of the loss.", "eod-mask-loss",
      OnlyInTraining());
    v("mask_prob", mask_prob, "bert, t5: share of the tokens that are masked.", "mask-prob", Affects::Samples,
      when("model.architecture", kinds_with(&ModelTraits::reads_sentences)), OnlyInTraining());
    v("short_seq_prob", short_seq_prob, "bert, t5: share of the samples that aim at a random shorter length.",
      "short-seq-prob", Affects::Samples, when("model.architecture", kinds_with(&ModelTraits::reads_sentences)),
      OnlyInTraining());
    v("index_samples", index_samples,
      "Samples that the order of the training data is made for, at least those of the run; 0: those of the run. "
      "Megatron-LM makes it for --train-samples, or for full batches of --train-iters.",
      Affects::Samples, OnlyInTraining());
    v("dataloader_type", dataloader_type,
      "single: samples in the order of their index; cyclic: each pass over all of them in an order of its own, that of "
      "torch.randperm seeded with the pass's number, whatever train.seed.",
      "dataloader-type", Affects::Samples, Choices({"single", "cyclic"}), OnlyInTraining());
    v("cyclic_batch", cyclic_batch,
      "cyclic: a pass leaves out the last samples that fill no batch of this size, which is Megatron-LM's micro batch.",
      Affects::Samples, when("data.dataloader_type", {"cyclic"}), OnlyInTraining());
    v("prefetch", prefetch, "Microbatches that a thread of each rank reads ahead of the step; 0: the step reads them.",
      Affects::Nothing, RanksMayDiffer());
  }
};

}  // namespace megatron::config
