#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "megatron/tasks/published/glue_examples.h"
#include "megatron/tasks/published/race_examples.h"
#include "megatron/text/tokenizer.h"

namespace megatron::tasks {

/// Tokens that frame what BERT reads.
struct BertFrame {
  std::int32_t cls = 0, sep = 0, pad = 0;
  int separators = 1;  ///< sep between two texts: <s> first </s></s> second </s>

  int tokens() const { return 2 + separators; }  ///< [CLS] first [SEP] second [SEP]
};

/// Throws ConfigError that names the token that the tokenizer lacks.
BertFrame bert_frame(const text::Tokenizer& tokenizer);

/// Writes [CLS] first [SEP] second [SEP] and padding into `ids`, and 1 into `types` from the second text to its [SEP],
/// elsewhere 0. Both have the same size, at least that of the texts and frame.tokens(). Returns the length without
/// padding.
std::int32_t write_row(const BertFrame& frame, std::span<const std::int32_t> first,
                       std::span<const std::int32_t> second, std::span<std::int32_t> ids,
                       std::span<std::int32_t> types);

/// Cuts two lengths to a sum of at most `room` as BERT does: one after another off the end of the longer text, off the
/// second where both are equally long.
void truncate_pair(std::size_t& first, std::size_t& second, std::size_t room);

/// Tokens of pairs of texts, one behind another without padding: what an epoch of a classification task reads.
class PairRows {
 public:
  /// Rows of [CLS] first [SEP] second [SEP] with at most `seq_length` tokens. Throws ConfigError where it is less
  /// than the frame and a token of each text.
  PairRows(const BertFrame& frame, int seq_length);

  /// Adds a row; texts that are too long are cut (truncate_pair).
  void add(std::span<const std::int32_t> first, std::span<const std::int32_t> second);

  std::size_t size() const { return seconds_.size(); }
  int seq_length() const { return seq_length_; }
  /// Tokens of a row, with its frame.
  std::int32_t length(std::size_t row) const {
    return static_cast<std::int32_t>(begins_[row + 1] - begins_[row]) + frame_.tokens();
  }
  /// Writes a row, padded to the size of `ids` and `types`, which is length(row) to any. Returns length(row).
  std::int32_t fill(std::size_t row, std::span<std::int32_t> ids, std::span<std::int32_t> types) const;

 private:
  BertFrame frame_;
  int seq_length_;
  std::vector<std::int32_t> tokens_;
  std::vector<std::size_t> begins_{0};  // of the rows, and the end
  std::vector<std::size_t> seconds_;    // where the second text of a row begins
};

/// A row for each example. Texts are encoded by up to `threads` threads.
PairRows pair_rows(const PairExamples& examples, const text::Tokenizer& tokenizer, const BertFrame& frame,
                   int seq_length, int threads);

/// Four rows for each question of RACE, one an option: [CLS] question with option [SEP] article [SEP], the first cut to
/// `max_question_length` tokens. Each article is encoded once.
PairRows choice_rows(const RaceExamples& examples, const text::Tokenizer& tokenizer, const BertFrame& frame,
                     int seq_length, int max_question_length, int threads);

}  // namespace megatron::tasks
