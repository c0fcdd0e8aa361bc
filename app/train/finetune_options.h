#pragma once
#include <functional>
#include <string>

#include "app/jobs.h"
#include "megatron/config/finetune_recipe.h"
#include "megatron/config/options.h"

namespace megatron::app {

/// The options of `megatron finetune`.
struct FinetuneOptions {
  config::FinetuneRecipe recipe;
  bool json = false;
  std::string note;  ///< config::unread_note(); no option

  void visit(auto& v) {
    v("json", json, "Print one JSON object on stdout; the log goes to stderr.", config::Common());
    recipe.visit(v);
  }
};

/// What the folder of checkpoint.load says of the run. Most kinds of folders are read with libtorch alone.
struct WeightsFolder {
  std::function<config::ModelConfig(const std::string& folder)> network;
  std::function<std::string(const std::string& folder)> tokenizer;  ///< "" where it has none
};

/// What recipe and words say, whatever the weights are. Throws HelpRequested, and ConfigError for what is wrong.
FinetuneOptions finetune_words(const Args& args);

/// What recipe, words and checkpoint.load say, which is asked where finetune_words() names one. Throws HelpRequested,
/// and ConfigError.
FinetuneOptions finetune_options(const Args& args, const WeightsFolder& weights);

}  // namespace megatron::app
