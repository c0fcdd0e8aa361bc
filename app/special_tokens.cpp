#include "app/special_tokens.h"

#include "megatron/base/error.h"

namespace megatron::app {

text::Specials specials_of(const std::string& flag) {
  if (flag == "recognised") return text::Specials::Recognised;
  if (flag == "text") return text::Specials::AsText;
  throw ConfigError(rule_got_fix("--special-tokens must be recognised or text.", flag, "--special-tokens recognised"));
}

}  // namespace megatron::app
