#include "megatron/text/files/tokenizer_types.h"

#include <algorithm>

#include "megatron/base/error.h"
#include "megatron/base/text/nearest.h"
#include "megatron/base/text/printable.h"
#include "megatron/text/characters/byte_level.h"
#include "megatron/text/files/hugging_face/pipeline_forms.h"

namespace megatron::text {
namespace {

constexpr const char* kLeaveTypeOut = "leave --tokenizer-type out: the files say what they are";

bool lowers_case(const Vocabulary& vocabulary) {
  const auto lowers = [](const Normalizer& step) {
    const auto* bert = std::get_if<BertNormalization>(&step);
    return std::holds_alternative<normalizer::Lowercase>(step) || (bert != nullptr && bert->lower_case);
  };
  const Pipeline pipeline = pipeline_of(vocabulary);
  return std::any_of(pipeline.normalizers.begin(), pipeline.normalizers.end(), lowers);
}

bool is_of_type(std::string_view type, const std::string& name, const Vocabulary& vocabulary) {
  const bool from_ranks = is_byte_level(vocabulary) && vocabulary.source.has_value();
  if (type == "GPT2BPETokenizer") return is_byte_level(vocabulary) && !vocabulary.pipeline;
  if (type == "BertWordPieceLowerCase") return vocabulary.word_piece && lowers_case(vocabulary);
  if (type == "BertWordPieceCase") return vocabulary.word_piece && !lowers_case(vocabulary);
  if (type == "SentencePieceTokenizer" || type == "GPTSentencePieceTokenizer" || type == "Llama2Tokenizer")
    return vocabulary.sentence_piece.has_value();
  if (type == "HuggingFaceTokenizer") return true;
  if (type == "TikTokenizer") return from_ranks;
  throw ConfigError(not_a_choice(
      name + ": a tokenizer's type", printable(type.substr(0, 60)),
      {"GPT2BPETokenizer", "BertWordPieceLowerCase", "BertWordPieceCase", "SentencePieceTokenizer",
       "GPTSentencePieceTokenizer", "Llama2Tokenizer", "HuggingFaceTokenizer", "TikTokenizer", "NullTokenizer"},
      "--tokenizer-type", kLeaveTypeOut));
}

const char* kind_of(const Vocabulary& vocabulary) {
  if (vocabulary.word_piece) return lowers_case(vocabulary) ? "WordPiece that lowers case" : "WordPiece with case";
  if (vocabulary.unigram) return "Unigram of a tokenizer.json";
  if (vocabulary.characters) return "BPE over characters of a tokenizer.json";
  if (vocabulary.sentence_piece) return "a SentencePiece model";
  if (vocabulary.word_level) return "whole words";
  if (vocabulary.source) return "a file of ranks";
  return vocabulary.pipeline ? "byte-level BPE with other steps than GPT-2's" : "byte-level BPE";
}

}  // namespace

void apply_type(std::string_view type, const std::string& name, Vocabulary& vocabulary) {
  if (type.empty()) return;
  if (!is_of_type(type, name, vocabulary))
    throw ConfigError(rule_got_fix(concat(name, ": the tokenizer must be of the type asked for, ", type),
                                   kind_of(vocabulary), kLeaveTypeOut));
  if (type == "GPT2BPETokenizer" || type == "TikTokenizer") vocabulary.end_of_text.reset();
  if (type != "Llama2Tokenizer") return;
  const auto begin = std::find(vocabulary.tokens.begin(), vocabulary.tokens.end(), "<s>");
  if (begin == vocabulary.tokens.end())
    throw ConfigError(rule_got_fix(concat(name, ": a Llama2Tokenizer must have the piece <s>"), "none"));
  const auto id = static_cast<std::int32_t>(begin - vocabulary.tokens.begin());
  using Kind = Template::Kind;
  vocabulary.frame.single = {{Kind::Token, id, 0}, {Kind::First, 0, 0}};
  vocabulary.frame.pair = {{Kind::Token, id, 0}, {Kind::First, 0, 0}, {Kind::Second, 0, 0}};
}

}  // namespace megatron::text
