#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "megatron/config/run_config.h"
#include "megatron/plan/stages.h"

// Which layers backward computes again as a whole (train.recompute full).
namespace megatron::plan {

struct ResolvedRun;

/// train.recompute_layers "fit", until it is resolved to a list.
inline constexpr const char* kFitLayers = "fit";

/// A flag for each of the model's layers: those that `text` names, such as "0-3,8,12-22:2" (0 to 3, 8, and every
/// second from 12 to 22), or "nothing". Throws ConfigError.
std::vector<bool> listed_layers(const std::string& text, std::int64_t num_layers);
/// The text that listed_layers() reads as these, in ranges: "0-3,8".
std::string text_of_layers(const std::vector<bool>& layers);

/// How train.recompute full chooses layers.
struct LayerRecomputation {
  enum class Method : std::uint8_t {
    None,
    Uniform,  ///< all, in groups of num_layers
    Block,    ///< a stage's first num_layers, each by itself
    Listed,   ///< those of `listed`, each by itself
  };
  Method method = Method::None;
  std::int64_t num_layers = 1;
  /// Some microbatches are partial: with Uniform and Listed they recompute nothing, with Block the first num_layers,
  /// and then the others every layer.
  bool some_partial = false;
  std::vector<bool> listed = {};  ///< by layer of the model
};

/// As resolved options say, of a model of so many layers. "fit" that is not resolved yet is all layers, each by itself.
LayerRecomputation layer_recomputation(const config::TrainConfig& train, std::int64_t num_layers);

/// All layers of `part` in order, in groups, cut where a T5's decoder begins after `encoder_layers` (0: no T5).
/// `partial`: of a microbatch that is partial.
std::vector<LayerGroup> layer_groups(const LayerRecomputation& recomputation, const StageSpec& part,
                                     std::int64_t encoder_layers = 0, bool partial = false);

/// Whether backward computes depths of multi-token prediction again, each by itself: with Uniform, as the layers.
bool depths_again(const LayerRecomputation& recomputation, bool partial);

/// Resolves train.recompute_layers fit: on each pipeline rank as few layers as let memory_plan() of the rank stay
/// within train.memory_limit_gb, and its activations within parallel.pp_memory_limit; those first whose bytes are the
/// most for their time. What parallel.pp_layout balanced and pp_schedule auto have become takes their place in the
/// options, so that these always give this run. Copies of weights in the order of a processor (packs_weights()) are not
/// counted. Other runs with a limit are checked against it. Throws ConfigError where the limit cannot be kept.
void resolve_memory_limit(ResolvedRun& run);

}  // namespace megatron::plan
