#pragma once
#include <array>
#include <unordered_map>

#include "megatron/text/characters/byte_trie.h"
#include "megatron/text/characters/unicode_classes.h"
#include "megatron/text/models/best_ways.h"
#include "megatron/text/models/symbol_merge.h"
#include "megatron/text/models/tokenizer_model.h"

namespace megatron::text {

/// SentencePiece's Unigram and byte-pair encoding, equal to its own in every tie and rounding.
class SentencePieceModel : public TokenizerModel {
 public:
  using Type = SentencePiece::Type;

  /// Throws ConfigError where `vocabulary` breaks a rule of vocabulary.h.
  explicit SentencePieceModel(Vocabulary vocabulary);
  std::unique_ptr<TextEncoder> encoder(int cache_bits) const override;

  /// A part of a text and its token: bytes [begin, end).
  struct TokenSpan {
    std::uint32_t begin = 0, end = 0;
    std::int32_t id = -1;
  };
  void unigram(std::string_view text, BestWays& ways, std::vector<TokenSpan>& parts) const;
  /// Calls `put(TokenSpan)` for each part in order; `symbols`, empty, and `room` to work in.
  template <class Put>
  void merge(std::string_view text, std::vector<Symbol>& symbols, MergeRoom& room, const Put& put) const;
  /// Appends the ids of one part, an unknown one as bytes or with those before it: `after_unknown` says of the part
  /// before that it was such a one.
  void write(std::string_view text, const TokenSpan& part, bool& after_unknown, std::vector<std::int32_t>& ids,
             std::vector<std::size_t>* ends) const;

 private:
  const SentencePiece& options() const { return *vocabulary().sentence_piece; }
  Type type(std::int32_t id) const { return options().types[static_cast<std::size_t>(id)]; }
  std::int32_t usable(std::string_view piece) const;
  void check() const;
  void rank_scores();

  ByteTrie trie_;                     // Unigram: what text can become
  ByteTrie user_symbols_;             // byte-pair encoding: what is taken as it is
  CodePointSet merging_{{}};          // characters of pieces that have several
  std::vector<std::uint32_t> ranks_;  // of each id: smallest for the best score
  std::size_t longest_ = 0;           // bytes of a piece
  std::int32_t unknown_ = 0;
  float lowest_ = 0, highest_ = 0;
  std::array<std::int32_t, 256> byte_ids_{};
};

}  // namespace megatron::text
