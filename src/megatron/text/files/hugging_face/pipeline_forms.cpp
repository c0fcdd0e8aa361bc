#include "megatron/text/files/hugging_face/pipeline_forms.h"

namespace megatron::text {

bool is_byte_level(const Vocabulary& vocabulary) {
  return !vocabulary.word_piece && !vocabulary.unigram && !vocabulary.characters && !vocabulary.sentence_piece &&
         !vocabulary.word_level;
}

std::vector<Decoder> decoders_of(const Vocabulary& vocabulary) {
  if (vocabulary.pipeline) return vocabulary.pipeline->decoders;
  if (const auto& piece = vocabulary.word_piece) return {decoder::WordPiece{piece->prefix, piece->cleanup}};
  return {decoder::ByteLevel()};
}

Pipeline pipeline_of(const Vocabulary& vocabulary) {
  if (vocabulary.pipeline) return *vocabulary.pipeline;
  Pipeline pipeline;
  if (vocabulary.normalization) pipeline.normalizers.emplace_back(*vocabulary.normalization);
  if (vocabulary.word_piece) {
    pipeline.pre_tokenizers = {pretokenizer::BertWords()};
  } else {
    if (vocabulary.split_digits) pipeline.pre_tokenizers.emplace_back(pretokenizer::Digits{.individual = true});
    pipeline.pre_tokenizers.emplace_back(pretokenizer::ByteLevel());
  }
  pipeline.decoders = decoders_of(vocabulary);
  return pipeline;
}

void use_scanners(Vocabulary& vocabulary) {
  if (!vocabulary.pipeline || (!is_byte_level(vocabulary) && !vocabulary.word_piece)) return;
  Vocabulary form;  // of the same kind, without tokens
  form.word_piece = vocabulary.word_piece;
  const Pipeline& pipeline = *vocabulary.pipeline;
  if (pipeline.normalizers.size() == 1)
    if (const auto* bert = std::get_if<BertNormalization>(&pipeline.normalizers[0])) form.normalization = *bert;
  form.split_digits = !form.word_piece && pipeline.pre_tokenizers.size() == 2;
  if (form.word_piece && pipeline.decoders.size() == 1)
    if (const auto* join = std::get_if<decoder::WordPiece>(&pipeline.decoders[0]))
      form.word_piece->cleanup = join->cleanup;
  if (pipeline_of(form) != pipeline) return;
  vocabulary.normalization = form.normalization;
  vocabulary.word_piece = form.word_piece;
  vocabulary.split_digits = form.split_digits;
  vocabulary.pipeline.reset();
}

}  // namespace megatron::text
