#include "megatron/text/files/sentinels.h"

#include <algorithm>
#include <cstdint>
#include <unordered_set>

#include "megatron/base/error.h"
#include "megatron/text/files/object_file.h"

namespace megatron::text {
namespace {

constexpr std::int32_t kUsualSentinels = 100, kMaxSentinels = 100000;

std::int32_t sentinels_beside(const std::filesystem::path& folder) {
  const ObjectFile config(folder, "tokenizer_config.json");
  if (!config.there) return ObjectFile(folder, "config.json").text("model_type") == "t5" ? kUsualSentinels : 0;
  if (!config.root.has("extra_ids"))
    return config.text("tokenizer_class").starts_with("T5Tokenizer") ? kUsualSentinels : 0;
  const std::int32_t count = config.root.number("extra_ids");
  if (count > kMaxSentinels) config.root.refuse(concat(".extra_ids must be at most ", kMaxSentinels), concat(count));
  return count;
}

}  // namespace

void add_sentinels(const std::filesystem::path& folder, Vocabulary& vocabulary) {
  if (!vocabulary.sentence_piece) return;
  const auto has = [&](const char* token) { return std::ranges::count(vocabulary.tokens, token) > 0; };
  if (has("<extra_id_0>") || has("\u2581<extra_id_0>")) return;  // the latter is how an mT5's model spells it
  for (std::int32_t number = sentinels_beside(folder) - 1; number >= 0; --number) {
    const auto id = static_cast<std::int32_t>(vocabulary.tokens.size());
    vocabulary.tokens.push_back(concat("<extra_id_", number, ">"));
    vocabulary.specials.push_back({.content = vocabulary.tokens.back(), .id = id});
    vocabulary.sentence_piece->types.push_back(SentencePiece::Type::Control);
    vocabulary.sentence_piece->scores.push_back(0);
  }
}

void add_extra_ids(std::int64_t count, const std::string& name, Vocabulary& vocabulary) {
  if (count == 0) return;
  if (count < 0 || count > kMaxSentinels)
    throw ConfigError(rule_got_fix(concat("data.vocab_extra_ids must be from 0 to ", kMaxSentinels, "."), concat(count),
                                   "--vocab-extra-ids 100"));
  if (!vocabulary.word_piece)
    throw ConfigError(rule_got_fix("data.vocab_extra_ids is for a WordPiece tokenizer (vocab.txt).", name,
                                   "leave --vocab-extra-ids out; a T5's SentencePiece model has its own sentinels"));
  std::unordered_set<std::string> known(vocabulary.tokens.begin(), vocabulary.tokens.end());
  const auto add = [&](const std::string& token) {
    if (!known.insert(token).second) return;
    vocabulary.specials.push_back({.content = token, .id = static_cast<std::int32_t>(vocabulary.tokens.size())});
    vocabulary.tokens.push_back(token);
  };
  add("[BOS]");
  add("[EOS]");
  for (std::int64_t number = 0; number < count; ++number) add(concat("<extra_id_", number, ">"));
}

std::size_t count_sentinels(const Vocabulary& vocabulary) {
  if (!vocabulary.sentence_piece) return 0;
  return static_cast<std::size_t>(std::ranges::count_if(
      vocabulary.specials, [](const SpecialToken& token) { return token.content.starts_with("<extra_id_"); }));
}

}  // namespace megatron::text
