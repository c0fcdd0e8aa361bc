#pragma once
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "megatron/checkpoint/weights.h"
#include "megatron/config/model_config.h"

namespace megatron::interchange {

/// Whether `folder` holds another program's weights, and so no state of training that a run here could resume from.
/// False for a folder that is not there.
bool is_foreign(const std::filesystem::path& folder);

/// The weights in `folder`, of any kind, under our names and in our global shapes. Opens and checks headers; reads
/// weights only when asked for them. Throws ConfigError that names file and field for what is damaged, unknown or not
/// of a model that this program computes. Not collective: every rank opens a source of its own.
std::unique_ptr<checkpoint::WeightSource> open_weights(const std::filesystem::path& folder);

/// `weights`, which must outlive it, without the depths of multi-token prediction.
std::unique_ptr<checkpoint::WeightSource> without_depths(const checkpoint::WeightSource& weights);

/// Whether `folder` is another program's and holds a run to resume, not weights alone. Throws ConfigError for what is
/// damaged.
bool is_foreign_run(const std::filesystem::path& folder);

/// Where `folder` holds a run of another program, also if this program has saved there since; empty: it does not.
std::filesystem::path foreign_run_in(const std::filesystem::path& folder);

/// The network whose weights `folder`, of any kind, holds: all that the weights and the results depend on. Options of
/// training that such a folder does not know (dropout in Megatron-LM's is known) keep their defaults.
config::ModelConfig model_config_of(const std::filesystem::path& folder);

/// An option that two networks have differently, and both values as one types them.
struct NetworkDifference {
  std::string option;  ///< "model.rotary_base"
  std::string ours, theirs;
};

/// What `ours` computes otherwise than `theirs`: every option that affects what weights mean (config/meaning.h) and
/// that both read. Those are left out whose effect is in parameters outside of layers alone (embeddings, heads) in
/// which the two differ: checkpoint::compare_weights judges these. Of another kind of model the kind alone. Empty:
/// weights mean the same.
std::vector<NetworkDifference> differences(const config::ModelConfig& ours, const config::ModelConfig& theirs);

/// Those of `model` from the network in `folder`, for people: "model.rotary_base: 10000, and 50000 in the folder".
std::vector<std::string> differences(const config::ModelConfig& model, const std::filesystem::path& folder);

/// Throws ConfigError that lists them.
void check_same_network(const config::ModelConfig& model, const std::filesystem::path& folder);
/// check_same_network() where the network in `folder` is known: `theirs`.
void check_same_network(const config::ModelConfig& model, const config::ModelConfig& theirs,
                        const std::filesystem::path& folder);

}  // namespace megatron::interchange
