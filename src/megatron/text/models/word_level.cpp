#include "megatron/text/models/word_level.h"

#include "megatron/base/error.h"
#include "megatron/base/text/printable.h"
#include "megatron/text/characters/byte_level.h"

namespace megatron::text {
namespace {

class WordLevelEncoder : public TextEncoder {
 public:
  explicit WordLevelEncoder(const WordLevelModel& model) : model_(model) {}
  void encode_piece(std::string_view piece, std::vector<std::int32_t>& ids, std::vector<std::size_t>* ends) override {
    ids.push_back(model_.id_of(piece));
    if (ends != nullptr) ends->push_back(piece.size());
  }

 private:
  const WordLevelModel& model_;
};

}  // namespace

WordLevelModel::WordLevelModel(Vocabulary vocabulary) : TokenizerModel(std::move(vocabulary), "words") {
  const auto& unknown = this->vocabulary().word_level->unknown;
  if (unknown) unknown_ = token_ids().find(*unknown);
}

std::unique_ptr<TextEncoder> WordLevelModel::encoder(int) const { return std::make_unique<WordLevelEncoder>(*this); }

std::int32_t WordLevelModel::id_of(std::string_view piece) const {
  if (const std::int32_t id = own_id(piece); id >= 0) return id;
  if (unknown_ < 0)
    throw ConfigError(
        rule_got_fix("tokenizer: a text must be made of its tokens, of which none stands for unknown ones",
                     in_quotes(piece), "take the text out, or a tokenizer with an unknown token"));
  return unknown_;
}

Vocabulary null_vocabulary(std::int32_t size) {
  if (size < 1 || size > (1 << 24))
    throw ConfigError(rule_got_fix("tokenizer: a null tokenizer must have 1 to 16777216 numbers", concat(size)));
  Vocabulary vocabulary;
  vocabulary.tokens.reserve(static_cast<std::size_t>(size) + 1);
  for (std::int32_t id = 0; id < size; ++id) vocabulary.tokens.push_back(std::to_string(id));
  vocabulary.tokens.emplace_back("<|endoftext|>");
  vocabulary.specials.push_back({.content = "<|endoftext|>", .id = size});
  vocabulary.word_level.emplace();
  vocabulary.pipeline.emplace();
  vocabulary.pipeline->pre_tokenizers = {pretokenizer::WhitespaceSplit()};
  return vocabulary;
}

}  // namespace megatron::text
