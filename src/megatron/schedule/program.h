#pragma once
#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
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
  ReduceGradients,  ///< start to reduce the stage's gradients over data-parallel ranks: its last backward is done
};

inline constexpr int kNumKinds = 13;

constexpr bool is_computation(Kind kind) { return kind <= Kind::BackwardWeight; }
constexpr bool is_communication(Kind kind) { return kind >= Kind::SendActivation && kind <= Kind::WaitRecvGradient; }
constexpr bool is_wait(Kind kind) { return kind >= Kind::WaitSendActivation && kind <= Kind::WaitRecvGradient; }
constexpr bool is_post(Kind kind) { return is_communication(kind) && !is_wait(kind); }
/// The wait that ends a post.
constexpr Kind wait_of(Kind post) { return static_cast<Kind>(static_cast<int>(post) + 4); }
/// The post that a wait ends.
constexpr Kind post_of(Kind wait) { return static_cast<Kind>(static_cast<int>(wait) - 4); }

/// One instruction. `stage` is the stage of the rank that executes it.
struct Op {
  Kind kind = Kind::Forward;
  int stage = 0;
  int microbatch = 0;
  /// Of a computation: its microbatch recomputes only part of what others recompute, or nothing, and keeps the rest
  /// (passes.h). The same for all computations of one microbatch on one stage.
  bool partial = false;
  auto operator<=>(const Op&) const = default;
};

/// Kinds in order: F B I W SA RA SG RG wSA wRA wSG wRG R.
std::string_view to_string(Kind kind);
/// "F2.5": forward, stage 2, microbatch 5.
std::string to_string(const Op& op);

struct Program {
  Placement placement;
  int num_microbatches = 0;
  bool forward_only = false;           ///< evaluation: no backward of any microbatch
  std::vector<std::vector<Op>> ranks;  ///< ranks[rank] is executed from front to back
  std::vector<int> max_live;           ///< declared bound of live activations by rank (validate.h); empty: none

  bool operator==(const Program&) const = default;
};

/// Whether it has messages: false for what generators make, true after insert_communication().
bool has_communication(const Program& program);

/// What a program may have at most, so that a wrong number is an error and not the end of memory.
inline constexpr std::int64_t kMaxRanks = 4096, kMaxStages = 16384, kMaxMicrobatches = 1'000'000, kMaxOps = 50'000'000;

}  // namespace megatron::schedule
