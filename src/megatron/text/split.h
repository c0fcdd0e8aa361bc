#pragma once
#include <memory>
#include <string>
#include <vector>

#include "megatron/text/aligned_text.h"
#include "megatron/text/pipeline.h"
#include "megatron/text/regex.h"

namespace megatron::text {

/// A text cut into pieces: none empty, in order; what lies between them is dropped.
struct Pieces {
  AlignedText text;
  std::vector<ByteSpan> spans;
};

/// One pre-tokenizer, ready to be applied. Constant; the expressions match through the caller's Matcher.
class SplitStep {
 public:
  virtual ~SplitStep() = default;
  virtual void apply(Pieces& pieces, Regex::Matcher& matcher) const = 0;
};

/// Pre-tokenizers in their order, as Hugging Face tokenizers applies them. The characters that ByteLevel would write
/// are left as they are: who looks the pieces up takes their bytes.
class SplitSteps {
 public:
  SplitSteps() = default;
  /// Throws ConfigError, beginning with `where`, for a step that cannot be compiled.
  SplitSteps(const std::vector<PreTokenizer>& steps, const std::string& where);

  /// Whether a step asks where a piece begins in the original, which only an aligned text knows behind the first step.
  bool needs_alignment() const { return needs_alignment_; }

  /// The pieces of a text that is normalized.
  void apply(Pieces& pieces, Regex::Matcher& matcher) const {
    for (const auto& step : steps_) step->apply(pieces, matcher);
  }

 private:
  std::vector<std::shared_ptr<const SplitStep>> steps_;
  bool needs_alignment_ = false;
};

}  // namespace megatron::text
