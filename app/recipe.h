#pragma once
#include <optional>

#include "megatron/config/run_config.h"
#include "megatron/plan/rules.h"
#include "megatron/text/tokenizer.h"

namespace megatron::app {

struct RunAndTokenizer {
  plan::ResolvedRun run;
  std::optional<text::Tokenizer> tokenizer;  ///< nothing where data.tokenizer names none
};

/// Loads the recipe's tokenizer and resolves the recipe with its size. What is wrong with either is one ConfigError.
RunAndTokenizer resolve_with_tokenizer(const config::RunConfig& config, plan::Facts facts);

}  // namespace megatron::app
