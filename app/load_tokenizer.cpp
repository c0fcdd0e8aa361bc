#include "app/load_tokenizer.h"

#include <cstdio>

#include "megatron/base/error.h"
#include "megatron/base/printable.h"
#include "megatron/text/vocabulary.h"

namespace megatron::app {

text::Tokenizer load_tokenizer(const std::string& path, const std::string& type) {
  text::Tokenizer tokenizer = text::Tokenizer::load(path, type);
  std::string parts;
  for (const std::string& part : tokenizer.vocabulary().not_applied)
    parts += concat(parts.empty() ? "" : " and ", part);
  if (!parts.empty())
    write_line(stderr,
               concat("warning: ", path, ": its ", parts, " does not apply: each job cuts and pads its own samples"));
  return tokenizer;
}

text::Specials specials_of(const std::string& flag) {
  if (flag == "recognised") return text::Specials::Recognised;
  if (flag == "text") return text::Specials::AsText;
  throw ConfigError(
      rule_got_fix("--special-tokens must be recognised or text.", flag, "--special-tokens recognised (the default)"));
}

}  // namespace megatron::app
