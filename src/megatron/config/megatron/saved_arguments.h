#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "megatron/config/run_config.h"

// The arguments that Megatron-LM keeps in a checkpoint, by the table of its flags: what a command line would say.
namespace megatron::config {

/// An attribute of the saved arguments. What is None is left out.
struct SavedArgument {
  std::string name;  ///< in Python: "num_layers"
  bool is_truth = false, truth = false;
  std::vector<std::string> values = {};  ///< of what is no truth value: numbers and texts, one for what is no list
};

/// What is asked of them: the network alone; also data, batches, optimizer and schedule of the run; or how ranks shared
/// the model.
enum class SavedShare : std::uint8_t { Network, Run, Layout };

/// The recipe of `args`, which a run of `program` (pretrain_gpt) saved in `file`, as far as `share` says; other options
/// have the recipe's defaults, those of logs, checkpoints, tokenizer, memory and communication always. Arguments that
/// validate_args() derives from others are not asked; names that are not known are ignored. Throws ConfigError, which
/// names `file` and has the fix `fix`, with everything that is wrong or needs what is not here.
RunConfig saved_recipe(const std::string& program, const std::vector<SavedArgument>& args, const std::string& file,
                       SavedShare share, const std::string& fix = "");

}  // namespace megatron::config
