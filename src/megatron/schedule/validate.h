#pragma once
#include "megatron/schedule/program.h"

namespace megatron::schedule {

/// Proves that a program (of ours, or read from a file) can be executed: every rank's ops belong to its stages; each
/// Forward and each Backward (or BackwardInput and BackwardWeight) exactly once; each op after what it needs; each
/// message posted once on both ends and waited for; messages from one rank to another received in the order sent; no
/// deadlock even where a send lasts until its receive is posted; at most `max_live` activations alive where declared.
/// Throws ConfigError with the rule and, where ranks wait for one another, the picture of who waits for whom.
void validate(const Program& program);

}  // namespace megatron::schedule
