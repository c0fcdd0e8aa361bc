#include "megatron/text/split/split.h"

#include <algorithm>
#include <utility>

#include "megatron/text/characters/bert_tables.h"
#include "megatron/text/characters/unicode_classes.h"
#include "megatron/text/normalize/bert_text.h"
#include "megatron/text/split/pretokenize.h"

namespace megatron::text {
namespace {

/// The parts of one piece, matches and what is between, as a behaviour joins them.
class Parts {
 public:
  Parts(SplitBehavior behavior, bool invert, const ByteSpan& piece, const TakePiece& take)
      : behavior_(behavior), invert_(invert), done_(piece.begin), take_(take) {}

  void match(std::size_t begin, std::size_t end) {
    if (done_ < begin) add({done_, begin}, invert_);
    add({begin, end}, !invert_);
    done_ = end;
  }

  void finish(std::size_t end) {
    if (done_ < end) add({done_, end}, invert_);
    give();
  }

 private:
  void add(const ByteSpan& span, bool is_match) {
    if (behavior_ == SplitBehavior::Removed && is_match) return;
    // A match goes to what is before it, or before what is behind it, where that is none; alike ones are one.
    const bool joins = behavior_ == SplitBehavior::MergedWithPrevious ? is_match && !is_match_
                       : behavior_ == SplitBehavior::MergedWithNext   ? is_match_ && !is_match
                       : behavior_ == SplitBehavior::Contiguous       ? is_match == is_match_
                                                                      : false;
    if (joins && any_) {
      last_.end = span.end;
    } else {
      give();
      last_ = span;
      any_ = true;
    }
    is_match_ = is_match;
  }

  void give() const {
    if (any_ && last_.begin < last_.end) take_(last_);
  }

  SplitBehavior behavior_;
  bool invert_, any_ = false, is_match_ = false;
  ByteSpan last_;  // may still grow
  std::size_t done_;
  const TakePiece& take_;
};

/// Cuts a piece: `find(piece, match)` calls match(begin, end) within it.
template <class Find>
void cut_piece(std::string_view text, const ByteSpan& piece, SplitBehavior behavior, bool invert, const TakePiece& take,
               const Find& find) {
  Parts parts(behavior, invert, piece, take);
  find(text.substr(piece.begin, piece.end - piece.begin),
       [&](std::size_t begin, std::size_t end) { parts.match(piece.begin + begin, piece.begin + end); });
  parts.finish(piece.end);
}

/// Cuts at each character of which `Is` is true, or at runs of such.
template <auto Is>
class CutCharacters : public CutStep {
 public:
  CutCharacters(SplitBehavior behavior, bool runs) : behavior_(behavior), runs_(runs) {}

  void cut(std::string_view text, const ByteSpan& piece, Regex::Matcher&, const TakePiece& take) const override {
    cut_piece(text, piece, behavior_, false, take, [&](std::string_view own, const auto& match) {
      std::size_t run = std::string::npos;
      for (std::size_t at = 0; at < own.size();) {
        const DecodedChar c = decode_utf8(own.data() + at, own.data() + own.size());
        const std::size_t end = at + static_cast<std::size_t>(std::max(c.length, 1));
        const bool found = Is(c.code_point);
        if (!runs_ && found) match(at, end);
        if (runs_ && found && run == std::string::npos) run = at;
        if (runs_ && !found && run != std::string::npos) match(std::exchange(run, std::string::npos), at);
        at = end;
      }
      if (run != std::string::npos) match(run, own.size());
    });
  }

 private:
  SplitBehavior behavior_;
  bool runs_;
};

/// Rewrites every piece: `write(text, span)` appends to the new text.
template <class Write>
void write_anew(Pieces& pieces, const Write& write) {
  AlignedText result = AlignedText::like(pieces.text);
  result.reserve(pieces.text.bytes().size() + pieces.text.bytes().size() / 4);
  for (ByteSpan& span : pieces.spans) {
    const std::size_t begin = result.bytes().size();
    write(result, span);
    span = {begin, result.bytes().size()};
  }
  pieces.text = std::move(result);
}

bool is_word_character(std::uint32_t c) {
  static const CodePointSet words(kWordRanges);
  return words.has(c);
}
bool is_bert_punctuation(std::uint32_t c) {
  static const CodePointSet signs(kBertPunctuation);
  return signs.has(c);
}
bool is_space(std::uint32_t c) { return UnicodeClasses::instance().of(c) == CharClass::Space; }

class CutAtPattern : public CutStep {
 public:
  CutAtPattern(pretokenizer::Split step, const std::string& where) : step_(std::move(step)) {
    if (step_.pattern.is_regex) regex_ = std::make_unique<Regex>(step_.pattern.text, where);
  }
  void cut(std::string_view text, const ByteSpan& piece, Regex::Matcher& matcher,
           const TakePiece& take) const override {
    cut_piece(text, piece, step_.behavior, step_.invert, take, [&](std::string_view own, const auto& match) {
      if (regex_) return matcher.for_each(*regex_, own, match);
      const std::string& what = step_.pattern.text;
      if (what.empty()) return;
      for (std::size_t at = own.find(what); at != std::string_view::npos; at = own.find(what, at + what.size()))
        match(at, at + what.size());
    });
  }

 private:
  pretokenizer::Split step_;
  std::unique_ptr<Regex> regex_;
};

class PrefixBlank : public RewriteStep {
  void rewrite(Pieces& pieces) const override {
    write_anew(pieces, [&](AlignedText& out, const ByteSpan& span) {
      if (pieces.text.bytes()[span.begin] != ' ') out.append_as(pieces.text, span.begin, " ");
      out.append_kept(pieces.text, span.begin, span.end);
    });
  }
};

class CutAsGpt2 : public CutStep {
  void cut(std::string_view text, const ByteSpan& piece, Regex::Matcher&, const TakePiece& take) const override {
    for_each_piece(text.substr(piece.begin, piece.end - piece.begin), [&](const char* p, std::size_t size) {
      const auto begin = static_cast<std::size_t>(p - text.data());
      take({begin, begin + size});
    });
  }
};

class CutAsBert : public CutStep {
  void cut(std::string_view text, const ByteSpan& piece, Regex::Matcher&, const TakePiece& take) const override {
    for_each_bert_word(text.substr(piece.begin, piece.end - piece.begin), [&](std::string_view word) {
      const auto begin = static_cast<std::size_t>(word.data() - text.data());
      take({begin, begin + word.size()});
    });
  }
};

class MarkBlanks : public RewriteStep {
 public:
  explicit MarkBlanks(pretokenizer::Metaspace step) : step_(std::move(step)) {}

  void rewrite(Pieces& pieces) const override {
    const AlignedText& text = pieces.text;
    write_anew(pieces, [&](AlignedText& out, const ByteSpan& span) {
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
  }

 private:
  static bool begins_original(const AlignedText& text, std::size_t at) {
    return (text.aligned() && at > 0 ? text.origin_of(at, at + 1).begin : at + text.origin()) == 0;
  }

  pretokenizer::Metaspace step_;
};

}  // namespace

SplitSteps::SplitSteps(const std::vector<PreTokenizer>& steps, const std::string& where) : stages_(1) {
  namespace p = pretokenizer;
  const auto add_cut = [&](auto step) {
    stages_.back().cuts.push_back(std::make_shared<decltype(step)>(std::move(step)));
  };
  const auto add_rewrite = [&](auto step) {
    stages_.push_back({std::make_shared<decltype(step)>(std::move(step)), {}});
  };
  struct Visit {
    const std::string& where;
    const decltype(add_cut)& cut;
    const decltype(add_rewrite)& rewrite;

    void operator()(const p::ByteLevel& s) const {
      if (s.add_prefix_space) rewrite(PrefixBlank());
      if (s.use_regex) cut(CutAsGpt2());
    }
    void operator()(const p::Split& s) const { cut(CutAtPattern(s, where)); }
    void operator()(const p::Whitespace&) const {
      cut(CutCharacters<is_space>(SplitBehavior::Removed, true));
      cut(CutCharacters<is_word_character>(SplitBehavior::Isolated, true));
    }
    void operator()(const p::WhitespaceSplit&) const { cut(CutCharacters<is_space>(SplitBehavior::Removed, false)); }
    void operator()(const p::BertWords&) const { cut(CutAsBert()); }
    void operator()(const p::Digits& s) const {
      cut(CutCharacters<is_number_character>(SplitBehavior::Isolated, !s.individual));
    }
    void operator()(const p::Punctuation& s) const { cut(CutCharacters<is_bert_punctuation>(s.behavior, false)); }
    void operator()(const p::Metaspace& s) const {
      rewrite(MarkBlanks(s));
      if (s.split)
        cut(CutAtPattern({.pattern = {s.replacement, false}, .behavior = SplitBehavior::MergedWithNext}, where));
    }
  };
  for (const PreTokenizer& step : steps) {
    const auto* metaspace = std::get_if<p::Metaspace>(&step);
    if (metaspace != nullptr && metaspace->prepend == PrependScheme::First && &step != &steps[0])
      needs_alignment_ = true;
    std::visit(Visit{where, add_cut, add_rewrite}, step);
  }
}

void SplitSteps::cut_one(const Stage& stage, std::size_t depth, std::string_view text, const ByteSpan& piece,
                         Matchers& matchers, const TakePiece& take) {
  if (depth == stage.cuts.size()) return take(piece);
  const auto next = [&](const ByteSpan& part) { cut_one(stage, depth + 1, text, part, matchers, take); };
  stage.cuts[depth]->cut(text, piece, matchers[depth], depth + 1 == stage.cuts.size() ? take : TakePiece(next));
}

void SplitSteps::cut_all(const Stage& stage, const Pieces& pieces, Matchers& matchers, const TakePiece& take) {
  if (matchers.size() < stage.cuts.size()) matchers.resize(stage.cuts.size());
  for (const ByteSpan& piece : pieces.spans) cut_one(stage, 0, pieces.text.bytes(), piece, matchers, take);
}

Pieces SplitSteps::begin(AlignedText&& text, Matchers& matchers) const {
  Pieces pieces{std::move(text), {}};
  pieces.spans = {{0, pieces.text.bytes().size()}};
  for (std::size_t i = 0; i + 1 < stages_.size(); ++i) {
    std::vector<ByteSpan> spans;
    const auto keep = [&](const ByteSpan& span) { spans.push_back(span); };
    cut_all(stages_[i], pieces, matchers, TakePiece(keep));
    pieces.spans = std::move(spans);
    stages_[i + 1].rewrite->rewrite(pieces);
  }
  return pieces;
}

}  // namespace megatron::text
