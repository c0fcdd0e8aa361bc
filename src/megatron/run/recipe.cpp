#include "megatron/run/recipe.h"

#include <algorithm>
#include <utility>

#include "megatron/base/attempt.h"
#include "megatron/interchange/companions.h"

namespace megatron::run {

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

void keep_tokenizer(const text::Tokenizer& tokenizer, const std::filesystem::path& out,
                    const std::filesystem::path& loaded) {
  const auto is_its = [&](const std::filesystem::path& folder) {
    return interchange::has_tokenizer(folder) && text::Tokenizer::load(folder).fingerprint() == tokenizer.fingerprint();
  };
  if (is_its(out)) return;
  if (!loaded.empty()) {
    const auto from = interchange::companion_folder(loaded);
    if (!from.empty() && is_its(from)) interchange::copy_companions(from, out);
  }
  if (!is_its(out)) tokenizer.save(out);
}

}  // namespace megatron::run
