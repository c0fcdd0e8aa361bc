#pragma once
#include <cstdint>
#include <string>

#include "megatron/config/model_config.h"
#include "megatron/interchange/megatron_lm/pickle.h"

// What Megatron-LM's checkpoints of both formats call networks and tensors.
namespace megatron::interchange {

/// What a checkpoint's tensors say of the kind of model, which its arguments do not.
struct KindOfTensors {
  bool encoder = false;             ///< there are layers of an encoder: a BERT's or a T5's
  std::int64_t decoder_layers = 0;  ///< those behind an encoder. Megatron-LM's script gives a decoder as many layers as
                                    ///< the encoder whatever its arguments say
  bool binary_head = false;
  std::int64_t token_types = 0;
};

/// The network that `args`, a namespace in `values`, describes, of that kind. Throws ConfigError naming the argument
/// for what this program does not compute.
config::ModelConfig model_of_arguments(const Pickle& values, const PickleNode& args, const KindOfTensors& tensors,
                                       const std::string& file);

/// One of their tensors under our name.
struct TheirName {
  std::string name;       ///< within a pipeline stage; empty for what is no weight of its own
  bool parameter = true;  ///< with an empty name: of the tied matrix's copy on another stage; false: no parameter
};

/// Whether `ours` is the router's biases of its experts, which are no parameter there: no optimizer has a state of
/// them.
bool is_expert_bias(const std::string& ours);

/// Throws ConfigError, naming `file`, for a tensor that none of the models has.
TheirName our_name(const std::string& theirs, bool tied_output, const std::string& file);

}  // namespace megatron::interchange
