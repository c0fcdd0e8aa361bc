#pragma once
#include <string>

#include "megatron/schedule/program.h"

namespace megatron::schedule {

/// A program as a text file, one line a rank:
///
///   # comments and empty lines are skipped
///   stages 0 1 1 0          rank of each stage
///   microbatches 8
///   forward-only            optional: evaluation
///   max-live 4 4            optional: bound of live activations by rank
///   rank 0: F0.0 SA0.0 wSA0.0 …
///
/// F0.1p, and p behind the backward that belongs to it: partial (Op::partial).
std::string to_text(const Program& program);

/// Reads it back. `name`: the file, for errors. Throws ConfigError naming line and column; takes memory by the text's
/// size alone. Stages and microbatches of operations exist; beyond that the program is not yet validated.
Program parse_program(const std::string& text, const std::string& name);

}  // namespace megatron::schedule
