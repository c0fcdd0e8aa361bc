#pragma once
#include <string>
#include <vector>

// The jobs of the command line: one function and one source file each (train.cpp, tokenizer.cpp, …). `args` are the words
// after the job's name. They return the exit code of cli.md's contract or throw; main() prints what they throw.
namespace megatron::app {

using Args = std::vector<std::string>;

}  // namespace megatron::app
