// Trains a small GPT on tokens that `megatron data preprocess` has written:
//   train_in_30_lines TOKENS TOKENIZER OUT
#include <iostream>

#include "megatron/base/error.h"
#include "megatron/run/ranks.h"
#include "megatron/run/training.h"

int main(int argc, char** argv) {
  using namespace megatron;
  if (argc != 4) return std::cerr << "train_in_30_lines TOKENS TOKENIZER OUT\n", 2;

  config::RunConfig recipe;  // every option of docs/config.md is a member of it
  recipe.model.num_layers = 2;
  recipe.model.hidden_size = 64;
  recipe.model.num_attention_heads = 4;
  recipe.parallel.world_size = recipe.parallel.tp = 2;  // two ranks, threads of this process, split each matrix
  recipe.data.data_path = {argv[1]};
  recipe.data.tokenizer = argv[2];
  recipe.data.seq_length = 32;
  recipe.schedule.lr = 5e-3;
  recipe.train.out = argv[3];
  recipe.train.train_iters = 60;
  recipe.train.micro_batch_size = 8;
  try {
    return run::run_job_of_ranks([&] { return run::train(run::open_training(recipe), {.stop_on_signals = true}); });
  } catch (const std::exception& error) {
    return std::cerr << error.what() << "\n", 1;
  }
}
