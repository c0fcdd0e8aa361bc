#include "megatron/text/models/tokenizer_model.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <nlohmann/json.hpp>

#include "megatron/base/error.h"
#include "megatron/base/text/format.h"
#include "megatron/base/text/printable.h"
#include "megatron/text/characters/byte_level.h"
#include "megatron/text/decode/decode.h"
#include "megatron/text/files/hugging_face/pipeline_forms.h"
#include "megatron/text/files/hugging_face/pipeline_json.h"
#include "megatron/text/models/bpe_model.h"
#include "megatron/text/models/character_bpe.h"
#include "megatron/text/models/sentencepiece_model.h"
#include "megatron/text/models/unigram.h"
#include "megatron/text/models/word_level.h"
#include "megatron/text/models/word_piece.h"

namespace megatron::text {

TokenizerModel::TokenizerModel(Vocabulary vocabulary, const char* kind) : vocabulary_(std::move(vocabulary)) {
  index_tokens();
  const Pipeline pipeline = pipeline_of(vocabulary_);
  normalizers_ = NormalizeSteps(pipeline.normalizers, "tokenizer: normalizer");
  pre_tokenizers_ = SplitSteps(pipeline.pre_tokenizers, "tokenizer: pre-tokenizer");
  added_ = AddedTokens(vocabulary_, token_ids_, [this](std::string_view text) {
    std::size_t replaced = 0;
    AlignedText aligned(text, 0, false, 0, replaced);
    Regex::Matcher matcher;
    normalizers_.apply(aligned, matcher);
    return aligned.bytes();
  });
  check_template();
  compute_fingerprint(kind);
}

void TokenizerModel::index_tokens() {
  const auto& tokens = vocabulary_.tokens;
  if (tokens.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()))
    throw ConfigError(rule_got_fix("tokenizer: ids must fit 31 bits", concat(tokens.size(), " tokens")));
  token_ids_.reserve(tokens.size());
  outside_.resize(tokens.size());
  for (const SpecialToken& special : vocabulary_.specials)
    if (special.outside && special.id >= 0 && static_cast<std::size_t>(special.id) < tokens.size())
      outside_[static_cast<std::size_t>(special.id)] = true;
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    if (tokens[id].empty()) continue;  // a hole
    const auto [seen, is_new] = token_ids_.emplace(tokens[id], static_cast<std::int32_t>(id));
    if (is_new) continue;
    if (outside_[id] != is_outside(*seen)) {
      twins_.emplace(tokens[id], outside_[id] ? *seen : static_cast<std::int32_t>(id));
      if (outside_[id]) *seen = static_cast<std::int32_t>(id);
    } else {
      throw ConfigError(rule_got_fix("tokenizer: no two ids may have the same bytes",
                                     concat("ids ", *seen, " and ", id, " are both ", in_quotes(tokens[id]))));
    }
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
  // Of byte-level BPE only a token that the model has too is another matter where it is outside.
  const bool bytes = std::string_view(kind) == "bpe";
  for (const SpecialToken& special : vocabulary_.specials)
    if (special.outside && (!bytes || twins_.contains(special.content))) hash.add(concat("outside ", special.id));
  if (vocabulary_.split_digits) hash.add("split digits");
  if (const auto& bert = vocabulary_.normalization)
    hash.add(concat("bert ", bert->clean_text, bert->space_chinese, bert->strip_accents, bert->lower_case));
  if (const auto& piece = vocabulary_.word_piece)
    hash.add(concat("word piece ", piece->max_word_characters, ' ', piece->cleanup, ' ', piece->prefix, '\n',
                    piece->unknown));
  if (const auto& pipeline = vocabulary_.pipeline) {
    hash.add(to_json(pipeline->normalizers).dump());
    hash.add(to_json(pipeline->pre_tokenizers).dump());
    hash.add(to_json(pipeline->decoders).dump());
  }
  if (vocabulary_.equal_ranks) hash.add("equal ranks");
  if (const auto& unigram = vocabulary_.unigram) {
    hash.add(concat("unigram ", unigram->unknown, ' ', unigram->byte_fallback));
    for (const double score : unigram->scores) hash.add(std::bit_cast<std::uint64_t>(score));
  }
  if (const auto& characters = vocabulary_.characters)
    hash.add(concat("characters ", characters->unknown.value_or(""), '\n', characters->fuse_unknown,
                    characters->byte_fallback, ' ', characters->prefix, '\n', characters->suffix));
  if (const auto& pieces = vocabulary_.sentence_piece) {
    hash.add(concat("pieces ", pieces->unigram, pieces->byte_fallback));
    for (std::size_t id = 0; id < pieces->scores.size() && id < pieces->types.size(); ++id)
      hash.add(static_cast<std::uint64_t>(std::bit_cast<std::uint32_t>(pieces->scores[id])) << 8 |
               static_cast<std::uint8_t>(pieces->types[id]));
  }
  if (const auto& words = vocabulary_.word_level) hash.add(concat("words ", words->unknown.value_or("")));
  fingerprint_ = fmt::format("{}-{}-{:016x}", kind, vocabulary_.tokens.size(), hash.value());
}

std::int32_t TokenizerModel::made_by_merge(std::size_t i, std::string_view continues) const {
  const auto [left, right] = vocabulary_.merges[i];
  const auto size = static_cast<std::int32_t>(vocabulary_.tokens.size());
  if (left < 0 || right < 0 || left >= size || right >= size)
    throw ConfigError(rule_got_fix(concat("tokenizer: merge ", i, " must join two ids of the vocabulary"),
                                   concat("ids ", left, " and ", right, " of ", size)));
  const std::string& head = vocabulary_.tokens[static_cast<std::size_t>(left)];
  std::string_view tail = vocabulary_.tokens[static_cast<std::size_t>(right)];
  if (tail.starts_with(continues)) tail.remove_prefix(continues.size());
  if (const auto known = i < vocabulary_.made.size() ? vocabulary_.made[i] : -1;
      known >= 0 && known < size && !is_outside(known)) {
    const std::string_view token = vocabulary_.tokens[static_cast<std::size_t>(known)];
    if (token.size() == head.size() + tail.size() && token.starts_with(head) && token.ends_with(tail)) return known;
  }
  std::string joined = head;
  joined.append(tail);
  const std::int32_t made = own_id(joined);
  if (made < 0)
    throw ConfigError(rule_got_fix(concat("tokenizer: merge ", i, " must make a token of the vocabulary"),
                                   concat("no token ", in_quotes(joined))));
  return made;
}

std::string TokenizerModel::decode(std::span<const std::int32_t> ids) const {
  std::string text;
  Decoding decoding(vocabulary_);
  for (const std::int32_t id : ids) decoding.push(id, text);
  decoding.finish(text);
  return text;
}

std::shared_ptr<const TokenizerModel> make_model(Vocabulary vocabulary) {
  if (vocabulary.word_piece) return std::make_shared<const WordPieceModel>(std::move(vocabulary));
  if (vocabulary.unigram) return std::make_shared<const UnigramModel>(std::move(vocabulary));
  if (vocabulary.characters) return std::make_shared<const CharacterBpeModel>(std::move(vocabulary));
  if (vocabulary.sentence_piece) return std::make_shared<const SentencePieceModel>(std::move(vocabulary));
  if (vocabulary.word_level) return std::make_shared<const WordLevelModel>(std::move(vocabulary));
  return std::make_shared<const BpeModel>(std::move(vocabulary));
}

}  // namespace megatron::text
