#include "megatron/text/open_tokenizer.h"

#include <cstdio>

#include "megatron/base/error.h"
#include "megatron/base/text/printable.h"
#include "megatron/text/vocabulary.h"

namespace megatron::text {

Tokenizer open_tokenizer(const std::string& path, const std::string& type) {
  Tokenizer tokenizer = Tokenizer::load(path, type);
  std::string parts;
  for (const std::string& part : tokenizer.vocabulary().not_applied)
    parts += concat(parts.empty() ? "" : " and ", part);
  if (!parts.empty())
    write_line(stderr,
               concat("warning: ", path, ": its ", parts, " does not apply: each job cuts and pads its own samples"));
  return tokenizer;
}

}  // namespace megatron::text
