#include "megatron/text/split.h"

#include <algorithm>
#include <utility>

#include "megatron/text/bert_tables.h"
#include "megatron/text/bert_text.h"
#include "megatron/text/pretokenize.h"
#include "megatron/text/unicode_classes.h"

namespace megatron::text {
namespace {

/// Collects the parts of one piece, matches and what is between, and gives on what a behaviour makes of them.
class Parts {
 public:
  Parts(SplitBehavior behavior, bool invert, std::vector<ByteSpan>& out)
      : behavior_(behavior), invert_(invert), out_(out) {}

  /// The parts of a piece follow, which begins at `begin`.
  void start(std::size_t begin) {
    done_ = begin;
    kept_.clear();
    after_match_ = false;
  }

  void match(std::size_t begin, std::size_t end) {
    if (done_ < begin) add({done_, begin}, invert_);
    add({begin, end}, !invert_);
    done_ = end;
  }

  void finish(std::size_t end) {
    if (done_ < end) add({done_, end}, invert_);
    if (behavior_ == SplitBehavior::MergedWithNext) merge_with_next();
    for (const auto& [span, is_match] : kept_)
      if (span.begin < span.end) out_.push_back(span);
  }

 private:
  struct Part {
    ByteSpan span;
    bool is_match = false;
  };

  void add(const ByteSpan& span, bool is_match) {
    const bool joins = behavior_ == SplitBehavior::MergedWithPrevious ? is_match && !after_match_
                       : behavior_ == SplitBehavior::Contiguous       ? is_match == after_match_
                                                                      : false;
    if (behavior_ == SplitBehavior::Removed && is_match) {
      // dropped
    } else if (joins && !kept_.empty()) {
      kept_.back().span.end = span.end;
    } else {
      kept_.push_back({span, is_match});
    }
    after_match_ = is_match;
  }

  void merge_with_next() {
    std::vector<Part> merged;  // from the last to the first
    bool after_match = false;
    for (std::size_t i = kept_.size(); i-- > 0;) {
      if (kept_[i].is_match && !after_match && !merged.empty())
        merged.back().span.begin = kept_[i].span.begin;
      else
        merged.push_back(kept_[i]);
      after_match = kept_[i].is_match;
    }
    kept_.assign(merged.rbegin(), merged.rend());
  }

  SplitBehavior behavior_;
  bool invert_;
  std::vector<ByteSpan>& out_;
  std::vector<Part> kept_;
  std::size_t done_ = 0;
  bool after_match_ = false;
};

/// Cuts every piece: `find(piece, match)` calls match(begin, end) within it.
template <class Find>
void cut(Pieces& pieces, SplitBehavior behavior, bool invert, const Find& find) {
  std::vector<ByteSpan> spans;
  spans.reserve(pieces.spans.size());
  Parts parts(behavior, invert, spans);
  for (const ByteSpan& span : pieces.spans) {
    parts.start(span.begin);
    find(std::string_view(pieces.text.bytes()).substr(span.begin, span.end - span.begin),
         [&](std::size_t begin, std::size_t end) { parts.match(span.begin + begin, span.begin + end); });
    parts.finish(span.end);
  }
  pieces.spans = std::move(spans);
}

/// Cuts at each character of which `is(code point)` is true, or at runs of such.
template <class Is>
void cut_characters(Pieces& pieces, SplitBehavior behavior, bool runs, bool invert, const Is& is) {
  cut(pieces, behavior, invert, [&](std::string_view text, const auto& match) {
    std::size_t run = std::string::npos;
    for (std::size_t at = 0; at < text.size();) {
      const DecodedChar c = decode_utf8(text.data() + at, text.data() + text.size());
      const std::size_t end = at + static_cast<std::size_t>(std::max(c.length, 1));
      const bool found = is(c.code_point);
      if (!runs && found) match(at, end);
      if (runs && found && run == std::string::npos) run = at;
      if (runs && !found && run != std::string::npos) match(std::exchange(run, std::string::npos), at);
      at = end;
    }
    if (run != std::string::npos) match(run, text.size());
  });
}

/// Writes every piece anew: `write(text, span)` appends to the new text.
template <class Write>
void rewrite(Pieces& pieces, const Write& write) {
  AlignedText result = AlignedText::like(pieces.text);
  result.reserve(pieces.text.bytes().size() + pieces.text.bytes().size() / 4);
  for (ByteSpan& span : pieces.spans) {
    const std::size_t begin = result.bytes().size();
    write(result, span);
    span = {begin, result.bytes().size()};
  }
  pieces.text = std::move(result);
}

bool is_word_character(std::uint32_t c) { return in_ranges(kWordRanges, c); }
bool is_bert_punctuation(std::uint32_t c) { return in_ranges(kBertPunctuation, c); }
bool is_space(std::uint32_t c) { return UnicodeClasses::instance().of(c) == CharClass::Space; }

class SplitPattern : public SplitStep {
 public:
  SplitPattern(pretokenizer::Split step, const std::string& where) : step_(std::move(step)) {
    if (step_.pattern.is_regex) regex_ = std::make_unique<Regex>(step_.pattern.text, where);
  }
  void apply(Pieces& pieces, Regex::Matcher& matcher) const override {
    cut(pieces, step_.behavior, step_.invert, [&](std::string_view text, const auto& match) {
      if (regex_) return matcher.for_each(*regex_, text, match);
      const std::string& what = step_.pattern.text;
      if (what.empty()) return;
      for (std::size_t at = text.find(what); at != std::string_view::npos; at = text.find(what, at + what.size()))
        match(at, at + what.size());
    });
  }

 private:
  pretokenizer::Split step_;
  std::unique_ptr<Regex> regex_;
};

class ByteLevelStep : public SplitStep {
 public:
  explicit ByteLevelStep(const pretokenizer::ByteLevel& step) : step_(step) {}
  void apply(Pieces& pieces, Regex::Matcher&) const override {
    if (step_.add_prefix_space)
      rewrite(pieces, [&](AlignedText& out, const ByteSpan& span) {
        if (pieces.text.bytes()[span.begin] != ' ') out.append_as(pieces.text, span.begin, " ");
        out.append_kept(pieces.text, span.begin, span.end);
      });
    if (step_.use_regex)
      cut(pieces, SplitBehavior::Isolated, false, [](std::string_view text, const auto& match) {
        for_each_piece(text, [&](const char* p, std::size_t size) {
          const auto begin = static_cast<std::size_t>(p - text.data());
          match(begin, begin + size);
        });
      });
  }

 private:
  pretokenizer::ByteLevel step_;
};

class WhitespaceStep : public SplitStep {
  void apply(Pieces& pieces, Regex::Matcher&) const override {
    cut_characters(pieces, SplitBehavior::Removed, true, false, is_space);
    cut_characters(pieces, SplitBehavior::Isolated, true, false, is_word_character);
  }
};

class WhitespaceSplitStep : public SplitStep {
  void apply(Pieces& pieces, Regex::Matcher&) const override {
    cut_characters(pieces, SplitBehavior::Removed, false, false, is_space);
  }
};

class BertWordsStep : public SplitStep {
  void apply(Pieces& pieces, Regex::Matcher&) const override {
    cut(pieces, SplitBehavior::Removed, true, [](std::string_view text, const auto& match) {
      for_each_bert_word(text, [&](std::string_view word) {
        const auto begin = static_cast<std::size_t>(word.data() - text.data());
        match(begin, begin + word.size());
      });
    });
  }
};

class DigitsStep : public SplitStep {
 public:
  explicit DigitsStep(bool individual) : individual_(individual) {}
  void apply(Pieces& pieces, Regex::Matcher&) const override {
    cut_characters(pieces, SplitBehavior::Isolated, !individual_, false, is_number_character);
  }

 private:
  bool individual_;
};

class PunctuationStep : public SplitStep {
 public:
  explicit PunctuationStep(SplitBehavior behavior) : behavior_(behavior) {}
  void apply(Pieces& pieces, Regex::Matcher&) const override {
    cut_characters(pieces, behavior_, false, false, is_bert_punctuation);
  }

 private:
  SplitBehavior behavior_;
};

class MetaspaceStep : public SplitStep {
 public:
  explicit MetaspaceStep(pretokenizer::Metaspace step) : step_(std::move(step)) {}

  void apply(Pieces& pieces, Regex::Matcher&) const override {
    const AlignedText& text = pieces.text;
    rewrite(pieces, [&](AlignedText& out, const ByteSpan& span) {
      const std::string_view piece = std::string_view(text.bytes()).substr(span.begin, span.end - span.begin);
      const bool begins = step_.prepend == PrependScheme::Always ||
                          (step_.prepend == PrependScheme::First && begins_original(text, span.begin));
      if (begins && !piece.starts_with(step_.replacement) && !piece.starts_with(' '))
        out.append_as(text, span.begin, step_.replacement);
      for (std::size_t done = 0; done < piece.size();) {
        const std::size_t blank = std::min(piece.find(' ', done), piece.size());
        out.append_kept(text, span.begin + done, span.begin + blank);
        if (blank < piece.size()) out.append_as(text, span.begin + blank, step_.replacement);
        done = blank + 1;
      }
    });
    if (!step_.split) return;
    cut(pieces, SplitBehavior::MergedWithNext, false, [&](std::string_view piece, const auto& match) {
      const std::string& mark = step_.replacement;
      for (std::size_t at = piece.find(mark); at != std::string_view::npos; at = piece.find(mark, at + mark.size()))
        match(at, at + mark.size());
    });
  }

 private:
  static bool begins_original(const AlignedText& text, std::size_t at) {
    return (text.aligned() && at > 0 ? text.origin_of(at, at + 1).begin : at + text.origin()) == 0;
  }

  pretokenizer::Metaspace step_;
};

using StepPointer = std::shared_ptr<const SplitStep>;

StepPointer compile(const PreTokenizer& step, const std::string& where) {
  namespace p = pretokenizer;
  struct Visit {
    const std::string& where;
    StepPointer operator()(const p::ByteLevel& s) const { return std::make_shared<ByteLevelStep>(s); }
    StepPointer operator()(const p::Split& s) const { return std::make_shared<SplitPattern>(s, where); }
    StepPointer operator()(const p::Whitespace&) const { return std::make_shared<WhitespaceStep>(); }
    StepPointer operator()(const p::WhitespaceSplit&) const { return std::make_shared<WhitespaceSplitStep>(); }
    StepPointer operator()(const p::BertWords&) const { return std::make_shared<BertWordsStep>(); }
    StepPointer operator()(const p::Digits& s) const { return std::make_shared<DigitsStep>(s.individual); }
    StepPointer operator()(const p::Punctuation& s) const { return std::make_shared<PunctuationStep>(s.behavior); }
    StepPointer operator()(const p::Metaspace& s) const { return std::make_shared<MetaspaceStep>(s); }
  };
  return std::visit(Visit{where}, step);
}

}  // namespace

SplitSteps::SplitSteps(const std::vector<PreTokenizer>& steps, const std::string& where) {
  for (const PreTokenizer& step : steps) {
    const auto* metaspace = std::get_if<pretokenizer::Metaspace>(&step);
    if (metaspace != nullptr && metaspace->prepend == PrependScheme::First && !steps_.empty()) needs_alignment_ = true;
    steps_.push_back(compile(step, where));
  }
}

}  // namespace megatron::text
