#include "megatron/text/tokenizer_model.h"

#include <algorithm>
#include <cstdio>
#include <limits>

#include "megatron/base/error.h"
#include "megatron/text/bpe_model.h"
#include "megatron/text/byte_level.h"
#include "megatron/text/word_piece.h"

namespace megatron::text {

TokenizerModel::TokenizerModel(Vocabulary vocabulary, const char* kind) : vocabulary_(std::move(vocabulary)) {
  index_tokens();
  added_ = AddedTokens(vocabulary_, token_ids_);
  check_template();
  compute_fingerprint(kind);
}

void TokenizerModel::index_tokens() {
  const auto& tokens = vocabulary_.tokens;
  if (tokens.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()))
    throw ConfigError(rule_got_fix("tokenizer: ids must fit 31 bits", concat(tokens.size(), " tokens")));
  token_ids_.reserve(tokens.size());
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    if (tokens[id].empty())
      throw ConfigError(rule_got_fix("tokenizer: a token must have at least one byte", concat("id ", id, " is empty")));
    const auto [seen, is_new] = token_ids_.emplace(tokens[id], static_cast<std::int32_t>(id));
    if (!is_new)
      throw ConfigError(rule_got_fix("tokenizer: no two ids may have the same bytes",
                                     concat("ids ", seen->second, " and ", id, " are both ", printable(tokens[id]))));
  }
}

void TokenizerModel::check_template() const {
  for (const auto* items : {&vocabulary_.frame.single, &vocabulary_.frame.pair})
    for (const Template::Item& item : *items)
      if (item.kind == Template::Kind::Token &&
          (item.token < 0 || static_cast<std::size_t>(item.token) >= vocabulary_.tokens.size()))
        throw ConfigError(rule_got_fix("tokenizer: the template must name tokens of the vocabulary",
                                       concat("id ", item.token, " of ", vocabulary_.tokens.size())));
}

/// What only some tokenizers have is added only there, so that the fingerprints of the others stay as they were.
void TokenizerModel::compute_fingerprint(const char* kind) {
  Fnv hash;
  for (const std::string& token : vocabulary_.tokens) {
    hash.add(token.size());
    hash.add(token);
  }
  for (const auto& [left, right] : vocabulary_.merges)
    hash.add(static_cast<std::uint64_t>(left) << 32 | static_cast<std::uint32_t>(right));
  auto ids = std::vector<std::int32_t>();
  for (const SpecialToken& special : vocabulary_.specials) ids.push_back(special.id);
  std::sort(ids.begin(), ids.end());
  for (const std::int32_t id : ids) hash.add(static_cast<std::uint64_t>(id));
  hash.add(static_cast<std::uint64_t>(vocabulary_.ignore_merges));
  for (const SpecialToken& special : vocabulary_.specials)
    if (special.single_word || special.lstrip || special.rstrip || special.normalized)
      hash.add(concat("token ", special.id, special.single_word, special.lstrip, special.rstrip, special.normalized));
  if (vocabulary_.split_digits) hash.add("split digits");
  if (const auto& bert = vocabulary_.normalization)
    hash.add(concat("bert ", bert->clean_text, bert->space_chinese, bert->strip_accents, bert->lower_case));
  if (const auto& piece = vocabulary_.word_piece)
    hash.add(concat("word piece ", piece->max_word_characters, ' ', piece->cleanup, ' ', piece->prefix, '\n',
                    piece->unknown));
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(hash.value()));
  fingerprint_ = concat(kind, "-", vocabulary_.tokens.size(), "-", digits);
}

std::string TokenizerModel::decode(std::span<const std::int32_t> ids) const {
  std::string bytes;
  for (const std::int32_t id : ids) bytes += vocabulary_.tokens[static_cast<std::size_t>(id)];
  return bytes;
}

std::shared_ptr<const TokenizerModel> make_model(Vocabulary vocabulary) {
  if (vocabulary.word_piece) return std::make_shared<const WordPieceModel>(std::move(vocabulary));
  return std::make_shared<const BpeModel>(std::move(vocabulary));
}

}  // namespace megatron::text
