#pragma once
#include <map>
#include <string>
#include <vector>

#include "megatron/base/files/gguf.h"
#include "megatron/text/vocabulary.h"

// The tokenizer in a GGUF file: byte-level BPE ("gpt2") that cuts text as GPT-2, SmolLM, Llama 3 or Qwen2 do, and
// SentencePiece's BPE ("llama").
namespace megatron::text {

/// How llama.cpp's name of cuts ("llama-bpe", "qwen2") cuts text before BPE; empty: no such name, or GPT-2's own way.
std::vector<PreTokenizer> gguf_cuts(std::string_view name);

/// Whether `file` has a tokenizer.
bool has_gguf_tokenizer(const Gguf& file);

/// Throws ConfigError, naming the entry, for a tokenizer that is none of these, or damaged.
Vocabulary read_gguf_tokenizer(const Gguf& file);

/// tokenizer.chat_template, or "".
std::string gguf_chat_template(const Gguf& file);

/// The spellings of its special tokens, by their names in tokenizer_config.json: "bos_token", "eos_token", ….
std::map<std::string, std::string> gguf_named_tokens(const Gguf& file);

}  // namespace megatron::text
