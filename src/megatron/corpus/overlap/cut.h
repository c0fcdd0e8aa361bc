#pragma once
#include <cstddef>
#include <string_view>
#include <vector>

#include "megatron/corpus/words.h"

namespace megatron::corpus {

/// How a document is cut around text that is not wanted.
struct CutOptions {
  std::size_t radius = 200;  ///< characters cut on either side of a match, and further to the end of the sentence
  std::size_t min_characters = 200;  ///< pieces of at most this many characters go
  std::size_t max_pieces = 10;       ///< a document of more pieces goes as a whole
};

/// Bytes [begin, end) of a text.
struct TextSpan {
  std::size_t begin, end;
  bool operator==(const TextSpan&) const = default;
};

/// The pieces of `text` that are left when every match is cut out, as Megatron-LM's filter_ngrams does it. From the
/// start of a match `radius` characters go back, and from there on to the nearest '.', '!' or '?', with which the piece
/// before ends; without one there is no piece before. From the end of a match `radius` characters go forward and on to
/// the nearest such character, after which the rest begins; matches that begin in the rest cut it in turn. A piece
/// before, and a rest, of `min_characters` or fewer goes. Characters are bytes that do not continue a UTF-8 character.
///
/// Differs from that tool in one thing: a match ends where its last word does; the tool takes the length of its words
/// joined by single spaces, which is less where there is punctuation between them.
///
/// `matches` are in the order of their begins, of equal begins the one that decides first. max_pieces is the
/// caller's to apply.
std::vector<TextSpan> cut_out(std::string_view text, const std::vector<TextSpan>& matches, const CutOptions& options);

}  // namespace megatron::corpus
