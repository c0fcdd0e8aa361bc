#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

// What is known of each optimizer without computing anything: the rows of optimizers.def.
namespace megatron::config {

struct OptimizerConfig;
using StateNames = std::vector<std::string>;

struct OptimizerInfo {
  std::string name;
  std::string paper;
  /// Names of what is kept for each element besides the weights, as checkpoints have them: of the matrices of layers
  /// (plan::ParameterSpec::is_layer_matrix()), and of other parameters.
  StateNames (*state)(const OptimizerConfig&, bool matrix);
};
const std::vector<OptimizerInfo>& optimizers();
/// Throws std::out_of_range for a name that no row has.
const OptimizerInfo& optimizer_info(const std::string& name);
std::vector<std::string> optimizer_names();
/// The names of all kinds of state, of matrices and of other parameters, each once.
StateNames state_names(const OptimizerConfig& optimizer);
/// "adam (Kingma & Ba 2015, AdamW), sgd (with momentum), …"
std::string optimizers_help();

/// The p that optimizer.clip_norm names, "l2" and "2" alike; infinity for "inf". Nothing where it names none from 1
/// to a million.
std::optional<double> norm_order(const std::string& name);

enum class Bounds : std::uint8_t { FromZeroToBelowOne, AboveZero, AtLeastOne };

/// An option that not every optimizer reads.
struct OptimizerOption {
  std::vector<std::string> readers;
  const char* path;  ///< "optimizer.adam_beta1"
  double (*value)(const OptimizerConfig&);
  Bounds bounds;
};
const std::vector<OptimizerOption>& optimizer_options();
/// Names of the optimizers that read such an option. Throws std::out_of_range for another.
const std::vector<std::string>& readers_of(const std::string& path);

}  // namespace megatron::config
