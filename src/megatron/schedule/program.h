#pragma once
#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "megatron/schedule/placement.h"

// A pipeline schedule as data: what each rank does, in which order. Generators make programs of computations, passes
// add communication and gradient reduction, one runtime executes them (pipeline/).
namespace megatron::schedule {

enum class Kind : std::uint8_t {
  // Computation of one microbatch on one stage.
  Forward,
  Backward,        ///< gradients of input and weights
  BackwardInput,   ///< gradient of the input; the weights' is put off
  BackwardWeight,  ///< what BackwardInput put off
  // Communication with the neighbouring stage, where that is on another rank: a post starts it, the wait ends it. Posts
  // that follow one another directly are issued together.
  SendActivation,  ///< stage's output, to stage + 1
  RecvActivation,  ///< stage's input, from stage - 1
  SendGradient,    ///< gradient of stage's input, to stage - 1
  RecvGradient,    ///< gradient of stage's output, from stage + 1
  WaitSendActivation,
  WaitRecvActivation,
  WaitSendGradient,
  WaitRecvGradient,
  // Once a stage; microbatch is 0.
  ReduceGradients,   ///< start to reduce the stage's gradients over data-parallel ranks: its last backward is done
  GatherParameters,  ///< have the stage's parameters whole before its first forward
};

/// One instruction. `stage` is the stage of the rank that executes it.
struct Op {
  Kind kind = Kind::Forward;
  int stage = 0;
  int microbatch = 0;
  auto operator<=>(const Op&) const = default;
};

/// "F2.5": forward, stage 2, microbatch 5. Kinds in order: F B I W SA RA SG RG wSA wRA wSG wRG R G.
std::string to_string(const Op& op);

struct Program {
  Placement placement;
  int num_microbatches = 0;
  bool forward_only = false;           ///< evaluation: no backward of any microbatch
  std::vector<std::vector<Op>> ranks;  ///< ranks[rank] is executed from front to back
  std::vector<int> max_live;           ///< declared bound of live activations by rank (validate.h); empty: none

  bool operator==(const Program&) const = default;
};

}  // namespace megatron::schedule
