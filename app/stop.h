#pragma once

namespace megatron::app {

/// From now on the first SIGINT or SIGTERM asks for a stop; the second one ends the program, as it would have without
/// us.
void stop_on_signals();

/// Whether one has come. Read by every rank through train::StopRequested.
bool stop_requested();

}  // namespace megatron::app
