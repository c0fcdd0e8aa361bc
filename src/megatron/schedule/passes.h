#pragma once
#include <cstdint>
#include <string>

#include "megatron/schedule/program.h"

// Program -> Program.
namespace megatron::schedule {

enum class Communication : std::uint8_t {
  /// Each message alone: posted and waited for at once. A message made while its receiver computes is put off until
  /// both ranks are between computations, if that is before it is needed: with equal stages whose backward takes twice
  /// a forward, and messages that take no time, blocking costs no schedule of generate.h any time.
  Unbatched,
  /// The same, but what a rank sends and receives between two computations is posted together, then waited for: send
  /// forward with receive backward, send backward with receive forward, all four with virtual stages.
  Batched,
  /// Messages travel during computation: a receive is posted at least one computation before the one that needs it,
  /// which waits for it; a send is waited for two computations later, so that a rank has at most two under way.
  Overlapped,
};

/// "unbatched", "batched", "overlapped". Throws ConfigError.
Communication communication_of(const std::string& text);

/// Adds the messages between stages on different ranks. Messages from one rank to another are received in the order in
/// which they are sent, whatever they carry, so that transports without tags work; and no rank waits for ever even
/// where a send lasts until its receive is posted. A post must not block, whatever its rank has posted before: a
/// transport that handles its operations one after the other needs a queue (with NCCL, a communicator and stream) for
/// each ordered pair of ranks. Throws ConfigError where the program is not valid, std::logic_error where it has
/// messages already.
Program insert_communication(const Program& computation, Communication how);

/// Adds ReduceGradients right after the last Backward or BackwardWeight of each stage; before or after
/// insert_communication().
Program insert_gradient_reduction(Program program);

/// Marks forwards, and the backwards that belong to them, as partial (Op::partial): each that would make at most
/// `most` partial activations alive at once on its rank. In 1F1B these are the first `most` of each window of as many
/// microbatches as the rank has in flight. `most` 0, and a forward-only program: marks none. What is marked already
/// stays so, and then nothing else is marked. Before or after the other passes.
Program mark_partial(Program program, int most);

}  // namespace megatron::schedule
