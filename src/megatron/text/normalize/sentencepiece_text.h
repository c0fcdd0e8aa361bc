#pragma once
#include <string>

#include "megatron/text/characters/byte_trie.h"
#include "megatron/text/normalize/aligned_text.h"
#include "megatron/text/normalize/charsmap.h"
#include "megatron/text/pipeline.h"

namespace megatron::text {

/// What SentencePiece does to text: replacements by its map, runs of spaces to one, the dummy space, U+2581 for spaces.
class SentencePieceText {
 public:
  /// Throws ConfigError, beginning with `where`, for a damaged map.
  SentencePieceText(const normalizer::SentencePiece& options, const std::string& where);

  void apply(AlignedText& text) const;

 private:
  struct MappedText {
    std::size_t size = 0;  ///< bytes taken
    std::string_view text;
  };
  MappedText next(std::string_view text) const;
  std::size_t plain_end(std::string_view text, std::size_t at) const;

  normalizer::SentencePiece options_;
  Charsmap map_;
  ByteTrie user_symbols_;
};

/// Hugging Face's use of the same map: on a grapheme cluster of less than 6 bytes as a whole, else on its characters.
void replace_clusters(AlignedText& text, const Charsmap& map);

}  // namespace megatron::text
