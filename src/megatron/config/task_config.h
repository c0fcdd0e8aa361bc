#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "megatron/config/tables/tasks.h"

// The options of `megatron finetune` (finetune_recipe.h) that say what is learned and on what.
namespace megatron::config {

struct TaskConfig {
  std::string name;
  std::string train;
  std::vector<std::string> valid;
  std::vector<std::string> test;
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
    v("name", name, "Task to learn.", "task", Choices(task_names()), Required());
    v("train", train, "Training data: the task's file as it is published; race: also a folder of .txt files.",
      "train-data", Common());
    v("valid", valid,
      "Validation sets: the best weights are chosen by the first; what they score on the others is reported too.",
      "valid-data", Common());
    v("test", test,
      "Sets to predict with the best weights; of those with labels the scores are reported; empty: none.");
    v("train_limit", train_limit, "Use only the first N training examples; 0: all.");
    v("valid_limit", valid_limit, "Evaluate only the first N examples of each validation set; 0: all.", "limit");
    v("epochs", epochs, "Passes over the training data; train.train_iters follows. 0: only evaluate and predict.",
      "epochs", Common());
    v("seeds", seeds, "Run once per seed, each in its own folder, and report the median; empty: only train.seed.",
      "seeds", Common());
    v("ensemble", ensemble, "Report the score of the mean of all seeds' logits.", "ensemble");
    v("pad_to_longest", pad_to_longest,
      "Rows are as long as the longest of the step, in steps of 8, instead of data.seq_length.");
    v("doc_stride", doc_stride, "squad: tokens from the beginning of one window of a context to that of the next.",
      "doc-stride");
    v("max_query_length", max_query_length,
      "Maximum tokens per question; 0: " + usual_lengths(&TaskRow::query_length) + ".", "max-query-length");
    v("n_best", n_best, "squad: answers in nbest_predictions.json, and starts and ends looked at in a window.");
    v("max_answer_length", max_answer_length, "squad: maximum tokens per answer.");
  }
};

}  // namespace megatron::config
