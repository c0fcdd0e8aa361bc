#pragma once
#include <array>

#include "megatron/text/characters/byte_trie.h"
#include "megatron/text/models/best_ways.h"
#include "megatron/text/models/tokenizer_model.h"

namespace megatron::text {

/// The tokens of the largest sum of scores (Kudo 2018), by Viterbi's algorithm: see Unigram in vocabulary.h.
class UnigramModel : public TokenizerModel {
 public:
  /// Of one token; longer ones would let a bad file make encoding as slow as text times token.
  static constexpr std::size_t kMaxTokenBytes = 4096;

  /// Throws ConfigError where `vocabulary` breaks a rule of vocabulary.h.
  explicit UnigramModel(Vocabulary vocabulary);
  std::unique_ptr<TextEncoder> encoder(int cache_bits) const override;

  void search(std::string_view piece, BestWays& ways) const;
  /// Appends the tokens of bytes [begin, end), which no token is.
  void encode_unknown(std::string_view piece, std::size_t begin, std::size_t end, std::vector<std::int32_t>& ids,
                      std::vector<std::size_t>* ends) const;

 private:
  const Unigram& options() const { return *vocabulary().unigram; }

  ByteTrie trie_;
  std::size_t longest_ = 0;  // bytes of a token
  double unknown_score_ = 0;
  std::array<std::int32_t, 256> byte_ids_{};
};

}  // namespace megatron::text
