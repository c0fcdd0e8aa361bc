#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "megatron/config/run_config.h"
#include "megatron/plan/rules.h"
#include "megatron/text/tokenizer.h"

namespace megatron::recipe {

/// What the file says that parallel.pp_schedule names; nothing where it names none: it has a '.' or a '/', or is no
/// schedule's name and a file is so called. Throws ConfigError where it cannot be read or has more than 256 MiB.
std::optional<std::string> read_schedule_file(const std::string& pp_schedule);

/// The model in the folder distill.teacher, by its config.json alone; nothing where it is empty, or the folder may be
/// of a format that families::network_of_folder() does not read. Throws ConfigError where nothing is there, or it
/// cannot be read.
std::optional<plan::TeacherNetwork> read_teacher(const std::string& folder);

struct RunAndTokenizer {
  plan::ResolvedRun run;
  std::optional<text::Tokenizer> tokenizer;  ///< nothing where data.tokenizer names none
};

/// The configuration whose null tokenizer, where data.tokenizer does not say how many numbers it has, has those of the
/// model's vocabulary: numbers and an end token.
config::RunConfig with_null_tokenizer(config::RunConfig config);

/// The rows that a model of `rows` must have for `tokenizer`: one for each token, but that special tokens behind them
/// may have none, as the <image_soft_token> of Gemma 3 in its folders without a part for pictures. The end of documents
/// must have one. What has a token without a row is refused where it is read.
std::int64_t needed_rows(const text::Tokenizer& tokenizer, std::int64_t rows);
/// Of a run: where masking draws from all tokens, each must have a row.
std::int64_t needed_rows(const text::Tokenizer& tokenizer, const config::ModelConfig& model);

/// Loads the recipe's tokenizer (a NullTokenizer that is not named has model.vocab_size tokens), the file of its
/// schedule and, where `facts` do not know it, what is known of its teacher, and resolves the recipe with them. What is
/// wrong with these is one ConfigError.
RunAndTokenizer resolve_with_tokenizer(const config::RunConfig& given, plan::Facts facts);

}  // namespace megatron::recipe
