#pragma once
#include <string>

namespace megatron::app {

/// `megatron plan --megatron-args FILE`: prints what the argument list of Megatron-LM's `program` in FILE means here, a
/// recipe, with what each word stands for or why it is ignored, and which rules of plan::resolve() it breaks. Reads
/// nothing but FILE. Throws ConfigError for words that are wrong and for what is not here.
int plan_megatron_args(const std::string& file, const std::string& program, bool as_json);

}  // namespace megatron::app
