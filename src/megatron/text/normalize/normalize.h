#pragma once
#include <memory>
#include <string>
#include <vector>

#include "megatron/text/normalize/aligned_text.h"
#include "megatron/text/pipeline.h"
#include "megatron/text/regex/regex.h"

namespace megatron::text {

/// One normalizer, ready to be applied. Constant; the expressions match through the caller's Matcher.
class NormalizeStep {
 public:
  virtual ~NormalizeStep() = default;
  virtual void apply(AlignedText& text, Regex::Matcher& matcher) const = 0;
};

/// Normalizers in their order, as Hugging Face tokenizers applies them, offsets included. ByteLevel is not among them:
/// who calls looks bytes up as they are.
class NormalizeSteps {
 public:
  NormalizeSteps() = default;
  /// Throws ConfigError, beginning with `where`, for a step that cannot be compiled.
  NormalizeSteps(const std::vector<Normalizer>& normalizers, const std::string& where);

  bool empty() const { return steps_.empty(); }
  void apply(AlignedText& text, Regex::Matcher& matcher) const {
    for (const auto& step : steps_) step->apply(text, matcher);
  }

 private:
  std::vector<std::shared_ptr<const NormalizeStep>> steps_;
};

/// `text` in lower case, as the normalizer Lowercase has it: each character for itself.
std::string to_lower_case(const std::string& text);

}  // namespace megatron::text
