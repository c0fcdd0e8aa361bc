#pragma once
#include <memory>
#include <string>
#include <vector>

#include "megatron/text/normalize/aligned_text.h"
#include "megatron/text/pipeline.h"
#include "megatron/text/regex/regex.h"

namespace megatron::text {

/// A text cut into pieces: none empty, in order; what lies between them is dropped.
struct Pieces {
  AlignedText text;
  std::vector<ByteSpan> spans;
};

/// Refers to what takes the pieces one by one; it must live as long.
class TakePiece {
 public:
  template <class Take>
  explicit TakePiece(const Take& take)
      : take_(&take), call_([](const void* self, const ByteSpan& span) { (*static_cast<const Take*>(self))(span); }) {}
  void operator()(const ByteSpan& span) const { call_(take_, span); }

 private:
  const void* take_;
  void (*call_)(const void*, const ByteSpan&);
};

/// A pre-tokenizer, or a part of one, that cuts each piece into parts; none of them empty. Constant.
class CutStep {
 public:
  virtual ~CutStep() = default;
  virtual void cut(std::string_view text, const ByteSpan& piece, Regex::Matcher& matcher,
                   const TakePiece& take) const = 0;
};

/// One that rewrites the pieces. Constant.
class RewriteStep {
 public:
  virtual ~RewriteStep() = default;
  virtual void rewrite(Pieces& pieces) const = 0;
};

/// Pre-tokenizers in their order, as Hugging Face tokenizers applies them. The characters that ByteLevel would write
/// are left as they are: who looks the pieces up takes their bytes.
class SplitSteps {
 public:
  /// One for each cut that is under way: what is cut is passed on to the next cut at once, so that no list of pieces is
  /// kept. One a thread.
  using Matchers = std::vector<Regex::Matcher>;

  SplitSteps() : SplitSteps({}, "") {}
  /// Throws ConfigError, beginning with `where`, for a step that cannot be compiled.
  SplitSteps(const std::vector<PreTokenizer>& steps, const std::string& where);

  /// Whether a step asks where a piece begins in the original, which only an aligned text knows behind the first step.
  bool needs_alignment() const { return needs_alignment_; }

  /// A text that is normalized, not empty, after all steps but the last cuts.
  Pieces begin(AlignedText&& text, Matchers& matchers) const;

  /// Calls `take(ByteSpan)` with what those cuts make of it.
  template <class Take>
  void finish(const Pieces& pieces, Matchers& matchers, const Take& take) const {
    cut_all(stages_.back(), pieces, matchers, TakePiece(take));
  }

 private:
  struct Stage {
    std::shared_ptr<const RewriteStep> rewrite;  // null: none, only in the first
    std::vector<std::shared_ptr<const CutStep>> cuts;
  };
  static void cut_all(const Stage& stage, const Pieces& pieces, Matchers& matchers, const TakePiece& take);
  static void cut_one(const Stage& stage, std::size_t depth, std::string_view text, const ByteSpan& piece,
                      Matchers& matchers, const TakePiece& take);

  std::vector<Stage> stages_;
  bool needs_alignment_ = false;
};

}  // namespace megatron::text
