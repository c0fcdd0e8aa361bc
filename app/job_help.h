#pragma once
#include <string>

namespace megatron::app {

/// What the help of a job ends with: what it writes, its exit codes, examples. `name`: "megatron data info". Of a job
/// without a row in job_help.cpp the exit codes alone.
std::string help_ending(const std::string& name);

}  // namespace megatron::app
