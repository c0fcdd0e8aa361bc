#pragma once
#include <cstdint>
#include <string>
#include <vector>

// The options of `megatron finetune` (finetune_recipe.h) that say what is learned and on what.
namespace megatron::config {

struct TaskConfig {
  std::string name;
  std::string train;
  std::string valid;
  std::string test;
  std::int64_t train_limit = 0;
  std::int64_t valid_limit = 0;
  double epochs = 3;
  std::vector<std::int64_t> seeds;
  bool ensemble = false;
  bool pad_to_longest = true;
  std::int64_t doc_stride = 128;
  std::int64_t max_query_length = 0;
  std::int64_t n_best = 20;
  std::int64_t max_answer_length = 30;

  void visit(auto& v) {
    v("name", name, "mnli, qqp, squad1, squad2 or race.", "task");
    v("train", train, "What to learn from: the task's file as it is published; of race also a folder of .txt files.",
      "train-data");
    v("valid", valid, "What to choose the best weights by.", "valid-data");
    v("test", test, "What to predict with the best weights besides; it needs no labels. Empty: nothing.");
    v("train_limit", train_limit, "Learn from the first examples alone; 0: all.");
    v("valid_limit", valid_limit, "Evaluate on the first examples alone; 0: all.", "limit");
    v("epochs", epochs, "Passes over what is learned from; train.train_iters follows. 0: evaluate and predict alone.",
      "epochs");
    v("seeds", seeds, "Run once for each, in folders of their own, and report the median; empty: train.seed alone.",
      "seeds");
    v("ensemble", ensemble, "Report what the mean of all seeds' logits scores.", "ensemble");
    v("pad_to_longest", pad_to_longest,
      "Rows are as long as the longest of the step, in steps of 8, instead of data.seq_length.");
    v("doc_stride", doc_stride, "squad: tokens from the beginning of one window of a context to that of the next.",
      "doc-stride");
    v("max_query_length", max_query_length, "Tokens that a question is cut to; 0: 64 of squad, 128 of race.",
      "max-query-length");
    v("n_best", n_best, "squad: answers in nbest_predictions.json, and starts and ends looked at in a window.");
    v("max_answer_length", max_answer_length, "squad: tokens that an answer may have.");
  }
};

}  // namespace megatron::config
