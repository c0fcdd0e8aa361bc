#pragma once
#include <cstdint>
#include <string>

#include "megatron/schedule/program.h"

// Program -> Program.
namespace megatron::schedule {

enum class Communication : std::uint8_t {
  Unbatched,   ///< each message alone: posted and waited for at once
  Batched,     ///< a send and the receive that goes with it (send forward, receive backward, …) as one pair
  Overlapped,  ///< receives posted early, sends waited for late: messages travel beside computation
};

/// "unbatched", "batched", "overlapped". Throws ConfigError.
Communication communication_of(const std::string& text);

/// Adds the messages between stages on different ranks. Messages from one rank to another are received in the order in
/// which they are sent, whatever they carry, so that transports without tags work.
Program insert_communication(const Program& computation, Communication how);

/// Adds ReduceGradients after the last backward of each stage.
Program insert_gradient_reduction(Program program);

/// Adds GatherParameters before the first forward of each stage.
Program insert_parameter_gathering(Program program);

}  // namespace megatron::schedule
