#pragma once

namespace megatron::run {

/// From now on the first SIGINT, SIGTERM, SIGHUP, or SIGUSR1 where `also_usr1`, asks for a stop; a second one, of
/// whatever kind but SIGUSR1, ends the program, as it would have without us. Those that the program was started to
/// ignore stay ignored, but for SIGUSR1. In a rank that a launcher's process supervises (kAttemptVariable) further ones
/// have no effect: who signals all processes of a job, as Slurm does, reaches the supervisor too, which passes the
/// first on and ends the rank at a second one.
void stop_on_signals(bool also_usr1 = false);

/// Whether one has come. Read by every rank through train::StopRequested.
bool stop_requested();

/// From now on each SIGUSR1 asks for a checkpoint.
void save_on_signal();

/// How often it has come. Read by every rank through train::RunWatch.
int saves_requested();

}  // namespace megatron::run
