#include "megatron/text/models/character_bpe.h"

#include <algorithm>

#include "megatron/base/error.h"
#include "megatron/base/text/printable.h"
#include "megatron/text/characters/byte_level.h"
#include "megatron/text/characters/byte_spelling.h"
#include "megatron/text/characters/unicode_classes.h"

namespace megatron::text {
/// Lengths, not places, as Hugging Face counts them: a character that becomes nothing has none.
template <class Add>
void CharacterBpeModel::begin_piece(std::string_view piece, std::string& scratch, const Add& add_symbol) const {
  check_mergeable(piece);
  std::uint32_t end = 0;    // of the symbols so far
  std::size_t unknown = 0;  // bytes of the unknown token that is not yet among them
  const auto add = [&](std::int32_t id, std::size_t size) {
    const std::uint32_t begin = std::exchange(end, end + static_cast<std::uint32_t>(size));
    add_symbol(Symbol{.id = id, .begin = begin, .end = end});
  };
  std::string_view last;  // the character that was looked up last, neither the first nor the last of the piece
  std::int32_t last_id = -1;
  const auto flush = [&] {
    if (unknown > 0) add(unknown_, std::exchange(unknown, 0));
  };
  for (std::size_t at = 0, size = 0; at < piece.size(); at += size) {
    size = static_cast<std::size_t>(std::max(decode_utf8(piece.data() + at, piece.data() + piece.size()).length, 1));
    const bool is_inner = at > 0 && at + size < piece.size();
    if (!is_inner || last != piece.substr(at, size)) {
      scratch.assign(at > 0 ? options().prefix : "").append(piece, at, size);
      if (at + size == piece.size()) scratch += options().suffix;
      last = is_inner ? piece.substr(at, size) : std::string_view();
      last_id = own_id(scratch);
    }
    if (last_id >= 0) {
      flush();
      add(last_id, size);
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
    // What no merge knows stays as it is, and parts the symbols before it from those behind it.
    symbols_.clear();
    const auto put = [&](const Symbol& symbol) {
      ids.push_back(symbol.id);
      if (ends != nullptr) ends->push_back(symbol.end);
    };
    const auto finish = [&] {
      if (symbols_.size() > 1) merge();
      for (const Symbol& symbol : symbols_) put(symbol);
      symbols_.clear();
    };
    model_.begin_piece(piece, character_, [&](const Symbol& symbol) {
      if (model_.may_merge(symbol.id)) return symbols_.push_back(symbol);
      finish();
      put(symbol);
    });
    finish();
  }

 private:
  void merge() {
    struct {
      std::int32_t left = -1, right = -1;
      SymbolPair pair;
    } last;  // the same two come again and again where a text says the same
    merge_symbols(symbols_, room_, model_.vocabulary().merges.size(), [&](const Symbol& a, const Symbol& b) {
      if (last.left != a.id || last.right != b.id) last = {a.id, b.id, model_.pair(a, b)};
      return last.pair;
    });
  }

  const CharacterBpeModel& model_;
  std::string character_;
  std::vector<Symbol> symbols_;
  MergeRoom room_;
};

}  // namespace

std::array<std::int32_t, 256> fallback_bytes(const TokenizerModel& model) {
  std::array<std::int32_t, 256> ids;
  for (std::size_t byte = 0; byte < 256; ++byte) ids[byte] = model.own_id(byte_token(static_cast<unsigned char>(byte)));
  return ids;
}

CharacterBpeModel::CharacterBpeModel(Vocabulary vocabulary) : TokenizerModel(std::move(vocabulary), "characters") {
  if (options().unknown) {
    unknown_ = token_ids().find(*options().unknown);
    if (unknown_ < 0)
      throw ConfigError(rule_got_fix("tokenizer: the unknown token must be a token of the vocabulary",
                                     in_quotes(*options().unknown)));
  }
  byte_ids_ = fallback_bytes(*this);
  index_merges();
}

void CharacterBpeModel::index_merges() {
  const auto& tokens = vocabulary().tokens;
  const auto& merges = vocabulary().merges;
  merges_.reserve(merges.size());
  may_merge_.resize(tokens.size());
  std::int32_t before = -1;
  std::uint32_t rank = 0;
  for (std::size_t i = 0; i < merges.size(); ++i) {
    const auto [left, right] = merges[i];
    const std::int32_t made = made_by_merge(i, options().prefix);
    if (i > 0 && (!vocabulary().equal_ranks || made != before)) ++rank;
    before = made;
    may_merge_[static_cast<std::size_t>(left)] = may_merge_[static_cast<std::size_t>(right)] = true;
    if (!merges_.emplace(key(left, right), SymbolPair{rank, made}).second)
      throw ConfigError(
          rule_got_fix("tokenizer: no pair may be merged twice",
                       concat("merge ", i, " makes ", in_quotes(tokens[static_cast<std::size_t>(made)]), " again")));
  }
}

std::unique_ptr<TextEncoder> CharacterBpeModel::encoder(int) const {
  return std::make_unique<CharacterBpeEncoder>(*this);
}

std::int32_t CharacterBpeModel::whole_piece(std::string_view piece) const {
  if (!vocabulary().ignore_merges) return -1;
  return own_id(piece);
}

}  // namespace megatron::text
