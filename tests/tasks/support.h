#pragma once
#include <gtest/gtest.h>

#include <string>

#include "megatron/base/error.h"
#include "megatron/text/files/tokenizer_files.h"
#include "megatron/text/tokenizer.h"

namespace megatron::tasks {

/// BERT's text, of which every letter is a token of its own: ids 5 to 30 begin a word, 31 to 56 continue one.
inline text::Tokenizer letter_tokenizer() {
  std::string tokens = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
  for (const std::string prefix : {"", "##"})
    for (char c = 'a'; c <= 'z'; ++c) tokens += prefix + c + '\n';
  return text::Tokenizer(text::parse_vocab_txt(tokens, "letters", text::BertNormalization()));
}

/// What the ConfigError of `work` says; fails where there is none.
template <class Work>
std::string error_of(const Work& work) {
  try {
    work();
  } catch (const ConfigError& error) {
    return error.what();
  }
  ADD_FAILURE() << "no ConfigError";
  return "";
}

}  // namespace megatron::tasks
