#pragma once
#include <array>
#include <unordered_map>

#include "megatron/text/models/symbol_merge.h"
#include "megatron/text/models/tokenizer_model.h"

namespace megatron::text {

/// Byte-pair encoding over characters: see CharacterBpe in vocabulary.h.
class CharacterBpeModel : public TokenizerModel {
 public:
  /// Throws ConfigError where `vocabulary` breaks a rule of vocabulary.h.
  explicit CharacterBpeModel(Vocabulary vocabulary);
  std::unique_ptr<TextEncoder> encoder(int cache_bits) const override;

  /// Calls `add(Symbol)` with the characters of a piece as tokens; `scratch` is room to work in.
  template <class Add>
  void begin_piece(std::string_view piece, std::string& scratch, const Add& add) const;
  /// Whether a merge takes the token.
  bool may_merge(std::int32_t id) const { return may_merge_[static_cast<std::size_t>(id)]; }
  /// What two neighbours become.
  SymbolPair pair(const Symbol& left, const Symbol& right) const {
    const auto found = merges_.find(key(left.id, right.id));
    return found == merges_.end() ? SymbolPair() : found->second;
  }
  /// Id of a piece that is a token as a whole and needs no merges, or -1.
  std::int32_t whole_piece(std::string_view piece) const;

 private:
  static std::uint64_t key(std::int32_t left, std::int32_t right) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
  }
  const CharacterBpe& options() const { return *vocabulary().characters; }
  void index_merges();

  std::int32_t unknown_ = -1;
  std::array<std::int32_t, 256> byte_ids_{};  // of <0x00> … <0xFF>, or -1
  std::unordered_map<std::uint64_t, SymbolPair> merges_;
  std::vector<bool> may_merge_;  // per id
};

/// Ids of <0x00> … <0xFF>, -1 where there is none.
std::array<std::int32_t, 256> fallback_bytes(const TokenizerModel& model);

}  // namespace megatron::text
