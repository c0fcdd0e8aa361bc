#include "megatron/text/character_bpe.h"

#include <algorithm>

#include "megatron/base/error.h"
#include "megatron/text/byte_level.h"
#include "megatron/text/byte_spelling.h"
#include "megatron/text/unicode_classes.h"

namespace megatron::text {
namespace {

class CharacterBpeEncoder : public TextEncoder {
 public:
  explicit CharacterBpeEncoder(const CharacterBpeModel& model) : model_(model) {}

  void encode_piece(std::string_view piece, std::vector<std::int32_t>& ids, std::vector<std::size_t>* ends) override {
    if (const std::int32_t id = model_.whole_piece(piece); id >= 0) {
      ids.push_back(id);
      if (ends != nullptr) ends->push_back(piece.size());
      return;
    }
    model_.begin_piece(piece, character_, symbols_);
    merge_symbols(symbols_, queue_, model_.vocabulary().merges.size(),
                  [&](const Symbol& a, const Symbol& b) { return model_.pair(a, b); });
    for (const Symbol& symbol : symbols_) {
      ids.push_back(symbol.id);
      if (ends != nullptr) ends->push_back(symbol.end);
    }
  }

 private:
  const CharacterBpeModel& model_;
  std::string character_;
  std::vector<Symbol> symbols_;
  PairQueue queue_;
};

}  // namespace

std::array<std::int32_t, 256> fallback_bytes(const std::unordered_map<std::string_view, std::int32_t>& token_ids) {
  std::array<std::int32_t, 256> ids;
  for (std::size_t byte = 0; byte < 256; ++byte) {
    const auto found = token_ids.find(byte_token(static_cast<unsigned char>(byte)));
    ids[byte] = found == token_ids.end() ? -1 : found->second;
  }
  return ids;
}

CharacterBpeModel::CharacterBpeModel(Vocabulary vocabulary) : TokenizerModel(std::move(vocabulary), "characters") {
  if (options().unknown) {
    const auto found = token_ids().find(*options().unknown);
    if (found == token_ids().end())
      throw ConfigError(rule_got_fix("tokenizer: the unknown token must be a token of the vocabulary",
                                     printable(*options().unknown)));
    unknown_ = found->second;
  }
  byte_ids_ = fallback_bytes(token_ids());
  index_merges();
}

void CharacterBpeModel::index_merges() {
  const auto& tokens = vocabulary().tokens;
  const auto& merges = vocabulary().merges;
  merges_.reserve(merges.size());
  std::int32_t before = -1;
  std::uint32_t rank = 0;
  for (std::size_t i = 0; i < merges.size(); ++i) {
    const auto [left, right] = merges[i];
    const std::int32_t made = made_by_merge(i, options().prefix);
    if (i > 0 && (!vocabulary().equal_ranks || made != before)) ++rank;
    before = made;
    if (!merges_.emplace(key(left, right), SymbolPair{rank, made}).second)
      throw ConfigError(
          rule_got_fix("tokenizer: no pair may be merged twice",
                       concat("merge ", i, " makes ", printable(tokens[static_cast<std::size_t>(made)]), " again")));
  }
}

std::unique_ptr<TextEncoder> CharacterBpeModel::encoder(int) const {
  return std::make_unique<CharacterBpeEncoder>(*this);
}

std::int32_t CharacterBpeModel::whole_piece(std::string_view piece) const {
  if (!vocabulary().ignore_merges) return -1;
  const auto found = token_ids().find(piece);
  return found == token_ids().end() ? -1 : found->second;
}

/// Lengths, not places, as Hugging Face counts them: a character that becomes nothing has none.
void CharacterBpeModel::begin_piece(std::string_view piece, std::string& scratch, std::vector<Symbol>& symbols) const {
  check_mergeable(piece);
  symbols.clear();
  std::uint32_t end = 0;    // of the symbols so far
  std::size_t unknown = 0;  // bytes of the unknown token that is not yet among them
  const auto add = [&](std::int32_t id, std::size_t size) {
    const std::uint32_t begin = std::exchange(end, end + static_cast<std::uint32_t>(size));
    symbols.push_back({.id = id, .begin = begin, .end = end});
  };
  const auto flush = [&] {
    if (unknown > 0) add(unknown_, std::exchange(unknown, 0));
  };
  for (std::size_t at = 0, size = 0; at < piece.size(); at += size) {
    size = static_cast<std::size_t>(std::max(decode_utf8(piece.data() + at, piece.data() + piece.size()).length, 1));
    scratch.assign(at > 0 ? options().prefix : "").append(piece, at, size);
    if (at + size == piece.size()) scratch += options().suffix;
    const auto found = token_ids().find(scratch);
    if (found != token_ids().end()) {
      flush();
      add(found->second, size);
      continue;
    }
    const auto is_token = [&](char c) { return byte_ids_[static_cast<unsigned char>(c)] >= 0; };
    if (options().byte_fallback && std::all_of(scratch.begin(), scratch.end(), is_token)) {
      for (const char c : scratch) add(byte_ids_[static_cast<unsigned char>(c)], 1);
      continue;
    }
    if (unknown_ < 0) continue;
    if (!options().fuse_unknown) flush();
    unknown += size;
  }
  flush();
}

}  // namespace megatron::text
