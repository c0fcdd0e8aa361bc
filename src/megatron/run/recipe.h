#pragma once
#include <filesystem>
#include <optional>

#include "megatron/config/run_config.h"
#include "megatron/plan/rules.h"
#include "megatron/text/tokenizer.h"

namespace megatron::run {

struct RunAndTokenizer {
  plan::ResolvedRun run;
  std::optional<text::Tokenizer> tokenizer;  ///< nothing where data.tokenizer names none
};

/// Loads the recipe's tokenizer and resolves the recipe with its size. What is wrong with either is one ConfigError.
RunAndTokenizer resolve_with_tokenizer(const config::RunConfig& config, plan::Facts facts);

/// A run's folder `out` keeps what makes text of its model's tokens, as `data.tokenizer` may change or go. A model that
/// was loaded, from `loaded` where that is not empty, brings the files beside it (its ends of texts, its chat template)
/// where its tokenizer is this.
void keep_tokenizer(const text::Tokenizer& tokenizer, const std::filesystem::path& out,
                    const std::filesystem::path& loaded);

}  // namespace megatron::run
