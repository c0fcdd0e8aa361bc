#pragma once
#include <filesystem>
#include <string>

#include "megatron/interchange/formats.h"

namespace megatron::interchange {

/// Writes `folder` with one checkpoint that Megatron-LM loads: with options.training iter_N, whose optimizer may be the
/// plain or the distributed one there, else "release", the weights alone. The vocabulary has
/// options.padded_vocab_size rows, if that is not 0; those of padding change no loss.
void write_torch_dist(const checkpoint::WeightSource& weights, const families::FolderConfig& config,
                      const std::filesystem::path& folder, const ExportOptions& options);

/// Of the state `kind` of a run here, what such a folder has: a Muon there keeps the mean of gradients, not their sum.
double written_share(const config::OptimizerConfig& optimizer, const std::string& kind);

}  // namespace megatron::interchange
