#include "megatron/tasks/pair_rows.h"

#include <algorithm>
#include <stdexcept>
#include <string_view>

#include "megatron/base/error.h"
#include "megatron/data/samples/masking_vocabulary.h"

namespace megatron::tasks {

BertFrame bert_frame(const text::Tokenizer& tokenizer) {
  const data::MaskingVocabulary vocabulary = data::bert_vocabulary(tokenizer);
  return {.cls = static_cast<std::int32_t>(vocabulary.cls),
          .sep = static_cast<std::int32_t>(vocabulary.sep),
          .pad = static_cast<std::int32_t>(vocabulary.pad),
          .separators = vocabulary.separators};
}

std::int32_t write_row(const BertFrame& frame, std::span<const std::int32_t> first,
                       std::span<const std::int32_t> second, std::span<std::int32_t> ids,
                       std::span<std::int32_t> types) {
  const std::size_t length = first.size() + second.size() + static_cast<std::size_t>(frame.tokens());
  if (ids.size() < length || types.size() != ids.size()) throw std::logic_error("write_row: the row is too short");
  auto id = ids.begin();
  *id++ = frame.cls;
  id = std::copy(first.begin(), first.end(), id);
  id = std::fill_n(id, frame.separators, frame.sep);
  const auto second_begins = types.begin() + (id - ids.begin());
  id = std::copy(second.begin(), second.end(), id);
  *id++ = frame.sep;
  std::fill(id, ids.end(), frame.pad);
  std::fill(types.begin(), second_begins, 0);
  const auto end = types.begin() + static_cast<std::ptrdiff_t>(length);
  std::fill(second_begins, end, 1);
  std::fill(end, types.end(), 0);
  return static_cast<std::int32_t>(length);
}

void truncate_pair(std::size_t& first, std::size_t& second, std::size_t room) {
  while (first + second > room) --(first > second ? first : second);
}

PairRows::PairRows(const BertFrame& frame, int seq_length) : frame_(frame), seq_length_(seq_length) {
  if (seq_length < frame.tokens() + 2)
    throw ConfigError(rule_got_fix(
        concat("the sequence length must hold two texts and their frame: ", frame.tokens() + 2, " or more."),
        concat(seq_length), "--seq-length 128"));
}

void PairRows::add(std::span<const std::int32_t> first, std::span<const std::int32_t> second) {
  std::size_t first_size = first.size(), second_size = second.size();
  truncate_pair(first_size, second_size, static_cast<std::size_t>(seq_length_ - frame_.tokens()));
  tokens_.insert(tokens_.end(), first.begin(), first.begin() + static_cast<std::ptrdiff_t>(first_size));
  seconds_.push_back(tokens_.size());
  tokens_.insert(tokens_.end(), second.begin(), second.begin() + static_cast<std::ptrdiff_t>(second_size));
  begins_.push_back(tokens_.size());
}

std::int32_t PairRows::fill(std::size_t row, std::span<std::int32_t> ids, std::span<std::int32_t> types) const {
  const std::span<const std::int32_t> tokens(tokens_);
  const std::size_t begin = begins_[row], second = seconds_[row], end = begins_[row + 1];
  return write_row(frame_, tokens.subspan(begin, second - begin), tokens.subspan(second, end - second), ids, types);
}

PairRows pair_rows(const PairExamples& examples, const text::Tokenizer& tokenizer, const BertFrame& frame,
                   int seq_length, int threads) {
  PairRows rows(frame, seq_length);
  std::vector<std::string_view> texts;
  texts.reserve(2 * examples.examples.size());
  for (const PairExample& example : examples.examples) {
    texts.emplace_back(example.first);
    texts.emplace_back(example.second);
  }
  const auto tokens = tokenizer.encode_batch(texts, threads);
  for (std::size_t i = 0; i < tokens.size(); i += 2) rows.add(tokens[i], tokens[i + 1]);
  return rows;
}

PairRows choice_rows(const RaceExamples& examples, const text::Tokenizer& tokenizer, const BertFrame& frame,
                     int seq_length, int max_question_length, int threads) {
  if (max_question_length < 1)
    throw ConfigError(rule_got_fix("a question of RACE must have at least one token.", concat(max_question_length),
                                   "--max-query-length 128"));
  PairRows rows(frame, seq_length);
  const auto articles = tokenizer.encode_batch(
      std::vector<std::string_view>(examples.articles.begin(), examples.articles.end()), threads);
  std::vector<std::string_view> texts;
  texts.reserve(RaceQuestion::kOptions * examples.questions.size());
  for (const RaceQuestion& question : examples.questions)
    texts.insert(texts.end(), question.texts.begin(), question.texts.end());
  const auto options = tokenizer.encode_batch(texts, threads);
  for (std::size_t i = 0; i < options.size(); ++i) {
    const auto article = static_cast<std::size_t>(examples.questions[i / RaceQuestion::kOptions].article);
    const std::size_t kept = std::min(options[i].size(), static_cast<std::size_t>(max_question_length));
    rows.add(std::span(options[i]).first(kept), articles[article]);
  }
  return rows;
}

}  // namespace megatron::tasks
