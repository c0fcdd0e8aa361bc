#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "megatron/text/vocabulary.h"

// BERT's treatment of text (Devlin et al. 2019), as Hugging Face tokenizers' BertNormalizer and BertPreTokenizer do it
// to the character.
namespace megatron::text {

/// `text` cleaned, Chinese characters set apart, accents stripped (canonical decomposition), in lower case, as
/// `options` say. Bytes that are not valid UTF-8 count as U+FFFD each.
std::string bert_normalize(std::string_view text, const BertNormalization& options);

/// Calls `word(std::string_view)` for each word of `text`: what white space separates, punctuation each by itself.
template <class OnWord>
void for_each_bert_word(std::string_view text, const OnWord& word);

/// The kind of the character at text[at …) and its length in bytes.
enum class BertChar : unsigned char { Word, Space, Punctuation };
BertChar bert_char(std::string_view text, std::size_t at, std::size_t& length);

template <class OnWord>
void for_each_bert_word(std::string_view text, const OnWord& word) {
  std::size_t begin = 0;
  for (std::size_t at = 0, length = 0; at < text.size(); at += length) {
    const BertChar kind = bert_char(text, at, length);
    if (kind == BertChar::Word) continue;
    if (begin < at) word(text.substr(begin, at - begin));
    if (kind == BertChar::Punctuation) word(text.substr(at, length));
    begin = at + length;
  }
  if (begin < text.size()) word(text.substr(begin));
}

}  // namespace megatron::text
