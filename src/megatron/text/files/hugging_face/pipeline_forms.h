#pragma once
#include <vector>

#include "megatron/text/vocabulary.h"

// Between the two treatments of text that have scanners of their own and the steps that they stand for.
namespace megatron::text {

/// The steps around the model, spelled out where the vocabulary names none.
Pipeline pipeline_of(const Vocabulary& vocabulary);

/// Its decoders alone.
std::vector<Decoder> decoders_of(const Vocabulary& vocabulary);

/// Where the steps of `vocabulary.pipeline` are GPT-2's or BERT's, says so by `split_digits`, `normalization` and
/// `word_piece`, and drops them: the scanners do the same faster.
void use_scanners(Vocabulary& vocabulary);

/// Whether the model's tokens are bytes, not characters.
bool is_byte_level(const Vocabulary& vocabulary);

}  // namespace megatron::text
