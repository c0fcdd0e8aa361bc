#include "megatron/text/learn/train_word_piece.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include "megatron/base/error.h"
#include "megatron/base/text/utf8.h"
#include "megatron/text/characters/unicode_classes.h"
#include "megatron/text/files/tokenizer_files.h"
#include "megatron/text/normalize/bert_text.h"

namespace megatron::text {
namespace {

constexpr const char* kPrefix = "##";

/// What a character is as a token, where it begins a word and where it continues one; -1: it is left out.
struct CharacterIds {
  std::int32_t begins = -1, goes_on = -1;
};

struct CharacterCount {
  std::uint64_t count = 0;
  bool goes_on = false;  // somewhere
};

std::map<std::uint32_t, CharacterCount> count_characters(const PieceCounter& words) {
  std::map<std::uint32_t, CharacterCount> characters;
  words.for_each([&](std::string_view word, std::uint64_t count) {
    for_each_character(word, [&](const DecodedChar& character, std::size_t at, std::size_t) {
      if (character.length == 0) return;
      const std::uint32_t c = character.code_point;
      const bool first = at == 0;
      CharacterCount& entry = characters[c];
      entry.count += count;
      entry.goes_on = entry.goes_on || !first;
    });
  });
  return characters;
}

void keep_most_frequent(std::map<std::uint32_t, CharacterCount>& characters, std::size_t limit) {
  if (characters.size() <= limit) return;
  std::vector<std::pair<std::uint64_t, std::uint32_t>> rarest;  // count, then the code point from above
  for (const auto& [c, entry] : characters) rarest.emplace_back(entry.count, ~c);
  std::sort(rarest.begin(), rarest.end());
  rarest.resize(characters.size() - limit);
  for (const auto& rare : rarest) characters.erase(~rare.second);
}

/// Adds the alphabet to the tokens, and says which ids it has.
std::unordered_map<std::uint32_t, CharacterIds> add_alphabet(const std::map<std::uint32_t, CharacterCount>& characters,
                                                             std::vector<std::string>& tokens) {
  std::unordered_map<std::string, std::int32_t> ids;
  for (std::size_t id = 0; id < tokens.size(); ++id) ids.emplace(tokens[id], static_cast<std::int32_t>(id));
  const auto add = [&](std::string token, std::uint32_t c) {
    append_utf8(token, c);
    const auto [found, is_new] = ids.emplace(token, static_cast<std::int32_t>(tokens.size()));
    if (is_new) tokens.push_back(std::move(token));
    return found->second;
  };
  std::unordered_map<std::uint32_t, CharacterIds> alphabet;
  for (const auto& [c, entry] : characters) alphabet[c].begins = add("", c);
  for (const auto& [c, entry] : characters)
    if (entry.goes_on) alphabet[c].goes_on = add(kPrefix, c);
  return alphabet;
}

TrainWords as_symbols(const PieceCounter& pieces, const std::unordered_map<std::uint32_t, CharacterIds>& alphabet) {
  TrainWords words;
  pieces.for_each([&](std::string_view word, std::uint64_t count) {
    const std::size_t begin = words.symbols.size();
    std::int64_t length = 0;
    for_each_character(word, [&](const DecodedChar&, std::size_t, std::size_t) { ++length; });
    if (length > WordPiece().max_word_characters) return;
    for_each_character(word, [&](const DecodedChar& character, std::size_t at, std::size_t) {
      if (character.length == 0) return;
      const std::uint32_t c = character.code_point;
      const bool first = at == 0;
      const auto found = alphabet.find(c);
      if (found != alphabet.end()) words.symbols.push_back(first ? found->second.begins : found->second.goes_on);
    });
    words.lengths.push_back(static_cast<std::uint32_t>(words.symbols.size() - begin));
    words.counts.push_back(static_cast<std::int64_t>(count));
  });
  return words;
}

}  // namespace

void TrainWordPieceOptions::check() const {
  merges.check(1);
  if (limit_alphabet < 1)
    throw ConfigError(rule_got_fix("limit_alphabet must be 1 or more.", concat(limit_alphabet),
                                   "--limit-alphabet 1000 (the default)"));
  if (std::find(merges.specials.begin(), merges.specials.end(), "[UNK]") == merges.specials.end())
    throw ConfigError(rule_got_fix("WordPiece needs the special token [UNK], what a word becomes that has no tokens.",
                                   concat(merges.specials.size(), " others"),
                                   "--special-tokens with [UNK] among them, or leave it out"));
}

CountPieces count_bert_words(const BertNormalization& normalization) {
  return [normalization](std::string_view document, PieceCounter& counter) {
    const std::string text = bert_normalize(document, normalization);
    const char* const end = text.data() + text.size();
    for_each_bert_word(text,
                       [&](std::string_view word) { counter.add(word, static_cast<std::size_t>(end - word.data())); });
  };
}

Vocabulary train_word_piece(const PieceCounter& words, const TrainWordPieceOptions& options,
                            const TrainProgress& progress) {
  options.check();
  auto characters = count_characters(words);
  keep_most_frequent(characters, static_cast<std::size_t>(options.limit_alphabet));
  std::vector<std::string> tokens = options.merges.specials;
  const auto alphabet = add_alphabet(characters, tokens);
  if (static_cast<std::int64_t>(tokens.size()) > options.merges.vocab_size)
    throw ConfigError(rule_got_fix("vocab_size must hold special tokens and alphabet.",
                                   concat(options.merges.vocab_size, " for ", tokens.size()),
                                   concat("--vocab-size ", tokens.size(), " or more, or a smaller --limit-alphabet")));
  LearnedMerges learned =
      learn_merges(std::move(tokens), as_symbols(words, alphabet), options.merges, kPrefix, progress);
  return bert_vocabulary(std::move(learned.tokens), options.merges.specials, options.normalization);
}

}  // namespace megatron::text
