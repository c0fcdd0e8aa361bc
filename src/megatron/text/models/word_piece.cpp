#include "megatron/text/models/word_piece.h"

#include <algorithm>

#include "megatron/base/error.h"
#include "megatron/base/text/printable.h"
#include "megatron/text/characters/byte_level.h"
#include "megatron/text/models/piece_cache.h"
#include "megatron/text/normalize/bert_text.h"

namespace megatron::text {
namespace {

bool continues_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

class WordPieceEncoder : public TextEncoder {
 public:
  WordPieceEncoder(const WordPieceModel& model, int cache_bits) : model_(model), cache_(cache_bits) {}

  void encode(std::string_view text, std::vector<std::int32_t>& out) override {
    cache_.encode(
        text.data() + text.size(),
        [&](const auto& piece) {
          for_each_bert_word(text, [&](std::string_view word) { piece(word.data(), word.size()); });
        },
        [&](std::string_view word, std::vector<std::int32_t>& ids) { model_.encode_word(word, scratch_, ids); }, out);
  }

  void encode_piece(std::string_view word, std::vector<std::int32_t>& ids, std::vector<std::size_t>* ends) override {
    const std::size_t before = ids.size();
    model_.encode_word(word, scratch_, ids);
    if (ends == nullptr) return;
    std::size_t end = 0;
    for (std::size_t i = before; i < ids.size(); ++i)
      ends->push_back(end = i + 1 == ids.size() ? word.size() : end + model_.piece_size(ids[i], i > before));
  }

 private:
  const WordPieceModel& model_;
  PieceCache cache_;
  std::string scratch_;
};

}  // namespace

WordPieceModel::WordPieceModel(Vocabulary vocabulary) : TokenizerModel(std::move(vocabulary), "wordpiece") {
  unknown_ = token_ids().find(options().unknown);
  if (unknown_ < 0)
    throw ConfigError(rule_got_fix("tokenizer: WordPiece's unknown token must be a token of the vocabulary",
                                   in_quotes(options().unknown)));
  if (!this->vocabulary().merges.empty() || this->vocabulary().split_digits)
    throw ConfigError(rule_got_fix("tokenizer: WordPiece has no merges", concat(this->vocabulary().merges.size())));
  index_pieces();
}

void WordPieceModel::index_pieces() {
  const auto& tokens = vocabulary().tokens;
  pieces_ = PieceTable(2 * tokens.size());
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const std::string_view token = tokens[i];
    const auto id = static_cast<std::int32_t>(i);
    if (is_outside(id)) continue;
    const auto add = [&](std::string_view piece, bool goes_on) {
      if (piece.empty()) return;
      if (piece.size() > kMaxTokenBytes)
        throw ConfigError(
            rule_got_fix(concat("tokenizer: a token of WordPiece must have at most ", kMaxTokenBytes, " bytes"),
                         concat(piece.size(), " bytes of id ", id)));
      if (piece.size() <= PieceKey::kMaxBytes) {
        const PieceKey key = PieceKey::of(piece.data(), piece.size(), piece.size());
        pieces_.insert(goes_on ? key.marked() : key, id);
      } else {
        long_[goes_on].add(piece, id);
      }
    };
    add(token, false);
    if (token.starts_with(options().prefix)) add(token.substr(options().prefix.size()), true);
  }
}

std::unique_ptr<TextEncoder> WordPieceModel::encoder(int cache_bits) const {
  return std::make_unique<WordPieceEncoder>(*this, cache_bits);
}

std::size_t WordPieceModel::longest_piece(std::string_view word, std::size_t at, std::size_t readable,
                                          std::int32_t& id) const {
  const bool goes_on = at > 0;
  const auto cuts_character = [&](std::size_t size) {
    return at + size < word.size() && continues_character(word[at + size]);
  };
  std::size_t longest = 0;
  if (word.size() - at > PieceKey::kMaxBytes)
    long_[goes_on].for_each_prefix(word.substr(at), [&](std::size_t size, std::int32_t found) {
      if (cuts_character(size)) return;
      longest = size;
      id = found;
    });
  if (longest > 0) return longest;
  for (std::size_t size = std::min(word.size() - at, PieceKey::kMaxBytes); size > 0; --size) {
    if (cuts_character(size)) continue;
    const PieceKey key = PieceKey::of(word.data() + at, size, readable - at);
    id = pieces_.find(goes_on ? key.marked() : key);
    if (id >= 0) return size;
  }
  return 0;
}

void WordPieceModel::encode_word(std::string_view word, std::string& scratch, std::vector<std::int32_t>& out) const {
  const auto limit = options().max_word_characters;
  if (static_cast<std::int64_t>(word.size()) > limit &&
      std::count_if(word.begin(), word.end(), [](char c) { return !continues_character(c); }) > limit)
    return out.push_back(unknown_);
  scratch.assign(word).append(16, '\0');  // so that 16 bytes may be read anywhere
  const std::string_view padded(scratch.data(), word.size());
  const std::size_t before = out.size();
  for (std::size_t at = 0; at < padded.size();) {
    std::int32_t id = -1;
    const std::size_t size = longest_piece(padded, at, scratch.size(), id);
    if (size == 0) {
      out.resize(before);
      return out.push_back(unknown_);
    }
    out.push_back(id);
    at += size;
  }
}

}  // namespace megatron::text
