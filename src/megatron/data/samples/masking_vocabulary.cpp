#include "megatron/data/samples/masking_vocabulary.h"

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>

#include "megatron/base/error.h"

namespace megatron::data {
namespace {

constexpr std::string_view kContinues = "##";

/// The id of the first of `spellings` that is a token, or -1.
std::int64_t find(const text::Tokenizer& tokenizer, std::initializer_list<std::string_view> spellings) {
  for (const std::string_view spelling : spellings)
    if (const auto id = tokenizer.token_to_id(spelling)) return *id;
  return -1;
}

std::int64_t need(const text::Tokenizer& tokenizer, const char* samples,
                  std::initializer_list<std::string_view> spellings) {
  const std::int64_t id = find(tokenizer, spellings);
  if (id >= 0) return id;
  std::string names;
  for (const std::string_view spelling : spellings) names += concat(names.empty() ? "" : " or ", spelling);
  throw ConfigError(rule_got_fix(concat(samples, " samples need the token ", names, "."),
                                 concat("a vocabulary of ", tokenizer.vocab_size(), " tokens without it"),
                                 concat("add the token to the vocabulary, or name a tokenizer made for ", samples)));
}

MaskingVocabulary vocabulary_of(const text::Tokenizer& tokenizer, const char* samples) {
  MaskingVocabulary vocabulary{.size = tokenizer.vocab_size(), .pad = need(tokenizer, samples, {"[PAD]", "<pad>"})};
  for (std::int32_t id = 0; id < tokenizer.vocab_size(); ++id)
    vocabulary.continues.push_back(tokenizer.id_to_bytes(id).starts_with(kContinues) ? 1 : 0);
  return vocabulary;
}

}  // namespace

MaskingVocabulary bert_vocabulary(const text::Tokenizer& tokenizer) {
  MaskingVocabulary vocabulary = vocabulary_of(tokenizer, "BERT");
  vocabulary.cls = need(tokenizer, "BERT", {"[CLS]", "<s>"});
  vocabulary.sep = need(tokenizer, "BERT", {"[SEP]", "</s>"});
  vocabulary.mask = need(tokenizer, "BERT", {"[MASK]", "<mask>"});
  if (find(tokenizer, {"[CLS]"}) >= 0) return vocabulary;
  vocabulary.separators = 2;
  std::ranges::fill(vocabulary.continues, 0);  // a token "##" is one of its texts
  return vocabulary;
}

MaskingVocabulary t5_vocabulary(const text::Tokenizer& tokenizer) {
  MaskingVocabulary vocabulary = vocabulary_of(tokenizer, "T5");
  vocabulary.cls = find(tokenizer, {"[CLS]"});
  vocabulary.sep = find(tokenizer, {"[SEP]"});
  vocabulary.begin = find(tokenizer, {"[BOS]", "<s>"});
  if (vocabulary.begin < 0) vocabulary.begin = vocabulary.pad;
  vocabulary.end = need(tokenizer, "T5", {"[EOS]", "</s>"});
  vocabulary.sentinels.push_back(need(tokenizer, "T5", {"<extra_id_0>"}));
  while (const auto id = tokenizer.token_to_id(concat("<extra_id_", vocabulary.sentinels.size(), ">")))
    vocabulary.sentinels.push_back(*id);
  return vocabulary;
}

}  // namespace megatron::data
