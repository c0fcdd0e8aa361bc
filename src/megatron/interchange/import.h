#pragma once
#include <filesystem>
#include <string>

#include "megatron/interchange/hf_config.h"

namespace megatron::interchange {

struct ImportOptions {
  std::string dtype;  ///< "float32", "bfloat16", "float16"; empty: each tensor's own
};

/// Makes `output` a folder of checkpoints of ours with one of iteration 0, that holds the weights of `folder` (of any
/// kind), the recipe of its network, and beside it the files of its tokenizer. Holds all weights in memory. `output`
/// must not hold checkpoints.
void import_weights(const std::filesystem::path& folder, const std::filesystem::path& output,
                    const ImportOptions& options);

/// The configuration with which the weights in `folder`, of any kind, are exported: of a checkpoint of ours the network
/// of its recipe, and the token ids of its tokenizer or of the folder that it was imported from.
FolderConfig export_config(const std::filesystem::path& folder);

}  // namespace megatron::interchange
