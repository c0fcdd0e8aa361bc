#include "app/recipe.h"

#include <algorithm>
#include <utility>

#include "megatron/base/attempt.h"

namespace megatron::app {

RunAndTokenizer resolve_with_tokenizer(const config::RunConfig& config, plan::Facts facts) {
  std::optional<text::Tokenizer> tokenizer;
  std::optional<plan::ResolvedRun> run;
  attempt_all({[&] {
                 if (config.data.tokenizer.empty()) return;
                 facts.tokenizer_vocab = std::max<std::int64_t>(1, config.model.vocab_size);  // if it cannot be read
                 tokenizer = text::Tokenizer::load(config.data.tokenizer, config.data.tokenizer_type);
                 facts.tokenizer_vocab = tokenizer->vocab_size();
               },
               [&] { run = plan::resolve(config, facts); }});
  return {std::move(*run), std::move(tokenizer)};
}

}  // namespace megatron::app
