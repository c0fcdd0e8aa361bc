#include "megatron/run/tokenizer.h"

#include <cstdio>

#include "megatron/base/error.h"
#include "megatron/base/text/printable.h"
#include "megatron/interchange/hugging_face/companions.h"
#include "megatron/text/vocabulary.h"

namespace megatron::run {

text::Tokenizer open_tokenizer(const std::string& path, const std::string& type) {
  text::Tokenizer tokenizer = text::Tokenizer::load(path, type);
  std::string parts;
  for (const std::string& part : tokenizer.vocabulary().not_applied)
    parts += concat(parts.empty() ? "" : " and ", part);
  if (!parts.empty())
    write_line(stderr,
               concat("warning: ", path, ": its ", parts, " does not apply: each job cuts and pads its own samples"));
  return tokenizer;
}

text::Tokenizer tokenizer_of_model(const std::string& folder, const config::RunConfig& recipe, const char* job) {
  const auto place = interchange::companion_folder(folder);
  if (!place.empty()) return text::Tokenizer::load(place);
  if (recipe.data.tokenizer.empty())
    throw ConfigError(rule_got_fix(concat(job, ": the model must have its tokenizer."),
                                   concat("none in ", folder, " nor in a recipe"), "--tokenizer FOLDER"));
  return text::Tokenizer::load(recipe.data.tokenizer, recipe.data.tokenizer_type, recipe.data.vocab_extra_ids);
}

}  // namespace megatron::run
