#pragma once
#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "megatron/tasks/squad_features.h"

namespace megatron::tasks {

struct SpanDecodingOptions {
  int n_best = 20;             ///< Starts and ends looked at in each window, and answers that are kept.
  int max_answer_tokens = 30;  ///< Longer spans are no answers.
  double null_threshold = 0;   ///< SQuAD 2.0: no answer where null_odds is above it.
};

struct SpanCandidate {
  std::string_view text = {};  ///< In the context; empty: no answer.
  double probability = 0, start_logit = 0, end_logit = 0;
};

struct DecodedAnswer {
  std::vector<SpanCandidate> n_best = {};  ///< Best first, one at least; texts differ. Views into the contexts.
  std::string_view text = {};              ///< Of the best candidate that is an answer; empty where none is.
  double null_odds = 0;                    ///< SQuAD 2.0: score of no answer less that of `text`.
  /// What is answered: `text`, or nothing where `null_odds` > the threshold.
  std::string_view answer = {};
};

/// The best answers of a question by the scores of their first and last tokens, as BERT's SQuAD code chooses them: in
/// each window the n_best starts and ends, those pairs that lie in the context in order, are short enough and begin at
/// a token with most context here (SquadFeatures::has_most_context); over all windows the best sums, each text once. In
/// SQuAD 2.0 no answer competes with the least sum that any window gives [CLS].
///
/// `start_logits`, `end_logits`: [windows of the question, seq_length], in the order of its windows. Equal scores keep
/// the order of windows and positions. Where a question has no span at all, SQuAD 2.0 answers nothing, and the only
/// candidate of 1.1 is the text "empty".
DecodedAnswer decode_spans(const SquadFeatures& features, std::size_t question, std::span<const float> start_logits,
                           std::span<const float> end_logits, const SpanDecodingOptions& options);

/// decode_spans() of all questions: logits [windows, seq_length].
std::vector<DecodedAnswer> decode_spans(const SquadFeatures& features, std::span<const float> start_logits,
                                        std::span<const float> end_logits, const SpanDecodingOptions& options);

}  // namespace megatron::tasks
