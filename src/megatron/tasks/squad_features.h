#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "megatron/tasks/pair_rows.h"
#include "megatron/tasks/published/squad_examples.h"
#include "megatron/text/tokenizer.h"

namespace megatron::tasks {

struct SquadFeatureOptions {
  int seq_length = 384;
  int doc_stride = 128;       ///< Tokens from the beginning of one window of a context to that of the next.
  int max_query_length = 64;  ///< Tokens that a question is cut to.
};

/// Tokens [first, first + count) of a question's context: what one row of the network reads of it.
struct SquadWindow {
  std::int32_t question = 0, first = 0, count = 0;
};

/// First and last position of an answer in a row; both 0, that of [CLS], where the row does not hold all of it.
struct SpanTarget {
  std::int32_t start = 0, end = 0;
  bool operator==(const SpanTarget&) const = default;
};

/// What BERT reads of a SQuAD (Devlin et al. 2019, section 4.2): [CLS] question [SEP] window of the context [SEP], in
/// windows that overlap where the context is longer than a row. Every context and question is encoded once; rows are
/// written when a batch is made.
class SquadFeatures {
 public:
  /// Encodes `examples`, which must outlive the features, by up to `threads` threads. Throws ConfigError where the
  /// options leave no room for a context, or make more than 2^26 windows.
  SquadFeatures(const SquadExamples& examples, const text::Tokenizer& tokenizer, const SquadFeatureOptions& options,
                int threads);

  const SquadExamples& examples() const { return *examples_; }
  const SquadFeatureOptions& options() const { return options_; }
  /// In the order of the questions, and of the context within one. Every question has one or more.
  std::span<const SquadWindow> windows() const { return windows_; }
  /// The windows of a question: [begin, end) of windows().
  std::pair<std::size_t, std::size_t> windows_of(std::size_t question) const {
    return {window_begins_[question], window_begins_[question + 1]};
  }

  /// Writes the row of a window: ids and token types, padded to options().seq_length, the size of both. Returns its
  /// length without padding.
  std::int32_t fill(std::size_t window, std::span<std::int32_t> ids, std::span<std::int32_t> types) const;

  /// Position in its row of the window's first context token; those of the others follow.
  std::int32_t context_position(std::size_t window) const {
    return static_cast<std::int32_t>(question_ids(static_cast<std::size_t>(windows_[window].question)).size()) +
           frame_.tokens() - 1;
  }

  /// Whether no other window of the question shows more of what surrounds the token at `position` of the row, a
  /// context token: the one with the larger shorter side, then the longer, then the first. An answer is taken only
  /// where it begins at such a token, so that it counts once.
  bool has_most_context(std::size_t window, std::int32_t position) const;

  /// Where the row holds an answer of the window's question: from the token with its first byte to that with its last.
  SpanTarget target(std::size_t window, const SquadAnswer& answer) const;

  /// The text that positions start … end of the row, context tokens, stand for in the context.
  std::string_view answer_text(std::size_t window, std::int32_t start, std::int32_t end) const;

 private:
  struct TextSpan {
    std::uint32_t begin = 0, end = 0;  // bytes of the context
  };
  void encode_contexts(const text::Tokenizer& tokenizer, int threads);
  void encode_questions(const text::Tokenizer& tokenizer, int threads);
  void cut_windows();
  std::span<const std::int32_t> question_ids(std::size_t question) const;
  std::size_t context_of(std::size_t window) const;
  std::span<const TextSpan> places(std::size_t context) const;

  const SquadExamples* examples_;
  SquadFeatureOptions options_;
  BertFrame frame_;
  std::vector<std::int32_t> context_ids_, question_ids_;
  std::vector<TextSpan> places_;  // of context_ids_
  std::vector<std::size_t> context_begins_{0}, question_begins_{0};
  std::vector<SquadWindow> windows_;
  std::vector<std::size_t> window_begins_;  // of the questions, and the end
};

}  // namespace megatron::tasks
