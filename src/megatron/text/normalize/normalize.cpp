#include "megatron/text/normalize/normalize.h"

#include <algorithm>
#include <iterator>

#include "megatron/base/text/utf8.h"
#include "megatron/text/characters/bert_tables.h"
#include "megatron/text/characters/unicode_classes.h"
#include "megatron/text/normalize/bert_text.h"
#include "megatron/text/normalize/normal_forms.h"
#include "megatron/text/normalize/sentencepiece_text.h"

namespace megatron::text {
namespace {

bool in_bert_accents(std::uint32_t c) { return c >= 0x300 && in_ranges(kBertAccents, c); }
bool is_space(std::uint32_t c) { return UnicodeClasses::instance().of(c) == CharClass::Space; }

/// Keeps the characters that `keep` does not refuse.
template <class Keep>
void filter(AlignedText& text, const Keep& keep) {
  AlignedText result = AlignedText::like(text);
  result.reserve(text.bytes().size());
  for_each_character(text.bytes(), [&](const DecodedChar& character, std::size_t begin, std::size_t end) {
    const std::uint32_t c = character.code_point;
    if (keep(c)) result.append_kept(text, begin, end);
  });
  text = std::move(result);
}

bool has_capitals(std::string_view text) {
  static const CodePointSet capitals = [] {
    CodePointSet set({});
    for (const CodePointMapping& mapping : kLowerCase) set.add(mapping.from);
    for (std::uint32_t c = 'A'; c <= 'Z'; ++c) set.add(c);
    return set;
  }();
  const char* const end = text.data() + text.size();
  for (const char* p = text.data(); p < end;) {
    const DecodedChar c = decode_utf8(p, end);
    if (capitals.has(c.code_point)) return true;
    p += std::max(c.length, 1);
  }
  return false;
}

void lower_case(AlignedText& text) {
  if (!has_capitals(text.bytes())) return;
  std::vector<Change> changes;
  changes.reserve(text.bytes().size());
  for_each_character(text.bytes(), [&](const DecodedChar& character, std::size_t, std::size_t) {
    const std::uint32_t c = character.code_point;
    if (c < 0x80) return changes.push_back({c >= 'A' && c <= 'Z' ? c + 0x20 : c, 0});
    const auto* found = std::lower_bound(std::begin(kLowerCase), std::end(kLowerCase), c,
                                         [](const CodePointMapping& m, std::uint32_t point) { return m.from < point; });
    if (found == std::end(kLowerCase) || found->from != c) return changes.push_back({c, 0});
    for (std::size_t i = 0; i < 3 && found->to[i] != 0; ++i) changes.push_back({found->to[i], i == 0 ? 0 : 1});
  });
  text.transform(changes);
}

void to_form(AlignedText& text, const normalizer::UnicodeForm& form) {
  if (may_change(text.bytes(), form)) text.transform(normal_form(text.bytes(), form));
}

class FormStep : public NormalizeStep {
 public:
  explicit FormStep(const normalizer::UnicodeForm& form) : form_(form) {}
  void apply(AlignedText& text, Regex::Matcher&) const override { to_form(text, form_); }

 private:
  normalizer::UnicodeForm form_;
};

class LowercaseStep : public NormalizeStep {
  void apply(AlignedText& text, Regex::Matcher&) const override { lower_case(text); }
};

class StripAccentsStep : public NormalizeStep {
  void apply(AlignedText& text, Regex::Matcher&) const override {
    filter(text, [](std::uint32_t c) { return !is_mark(c); });
  }
};

class StripStep : public NormalizeStep {
 public:
  explicit StripStep(const normalizer::Strip& strip) : strip_(strip) {}
  void apply(AlignedText& text, Regex::Matcher&) const override {
    std::size_t first = std::string::npos, last = 0;  // where what is no space begins and ends
    for_each_character(text.bytes(), [&](const DecodedChar& character, std::size_t begin, std::size_t end) {
      const std::uint32_t c = character.code_point;
      if (is_space(c)) return;
      first = std::min(first, begin);
      last = end;
    });
    AlignedText result = AlignedText::like(text);
    const std::size_t begin = strip_.left ? std::min(first, text.bytes().size()) : 0;
    const std::size_t end = strip_.right ? std::max(last, begin) : text.bytes().size();
    result.append_kept(text, begin, end);
    text = std::move(result);
  }

 private:
  normalizer::Strip strip_;
};

class ReplaceStep : public NormalizeStep {
 public:
  ReplaceStep(const normalizer::Replace& replace, const std::string& where) : replace_(replace) {
    if (replace.pattern.is_regex) regex_ = std::make_unique<Regex>(replace.pattern.text, where);
  }

  void apply(AlignedText& text, Regex::Matcher& matcher) const override {
    AlignedText result = AlignedText::like(text);
    std::size_t done = 0;
    const auto replace = [&](std::size_t begin, std::size_t end) {
      result.append_kept(text, done, begin);
      result.append_as(text, end - 1, replace_.content);  // of the last character, or of the one before an empty match
      done = end;
    };
    if (regex_) {
      matcher.for_each(*regex_, text.bytes(), replace);
    } else if (const std::string& what = replace_.pattern.text; !what.empty()) {
      for (std::size_t at = text.bytes().find(what); at != std::string::npos; at = text.bytes().find(what, done))
        replace(at, at + what.size());
    }
    if (done == 0 && result.bytes().empty()) return;
    result.append_kept(text, done, text.bytes().size());
    text = std::move(result);
  }

 private:
  normalizer::Replace replace_;
  std::unique_ptr<Regex> regex_;
};

class PrependStep : public NormalizeStep {
 public:
  explicit PrependStep(const normalizer::Prepend& prepend) : prepend_(prepend) {}
  void apply(AlignedText& text, Regex::Matcher&) const override {
    if (text.bytes().empty()) return;
    AlignedText result = AlignedText::like(text);
    result.append_as(text, 0, prepend_.content);
    result.append_kept(text, 0, text.bytes().size());
    text = std::move(result);
  }

 private:
  normalizer::Prepend prepend_;
};

class BertStep : public NormalizeStep {
 public:
  explicit BertStep(const BertNormalization& bert) : bert_(bert) {}

  void apply(AlignedText& text, Regex::Matcher&) const override {
    if (bert_.clean_text) clean(text);
    if (bert_.space_chinese) space_chinese(text);
    if (bert_.strip_accents) {
      to_form(text, {});
      filter(text, [](std::uint32_t c) { return !in_bert_accents(c); });
    }
    if (bert_.lower_case) lower_case(text);
  }

 private:
  static void clean(AlignedText& text) {
    AlignedText result = AlignedText::like(text);
    result.reserve(text.bytes().size());
    for_each_character(text.bytes(), [&](const DecodedChar& character, std::size_t begin, std::size_t end) {
      const std::uint32_t c = character.code_point;
      if (c == '\t' || c == '\n' || c == '\r' || (is_space(c) && !in_ranges(kBertRemoved, c)))
        result.append_as(text, begin, " ");
      else if (!in_ranges(kBertRemoved, c))
        result.append_kept(text, begin, end);
    });
    text = std::move(result);
  }

  static void space_chinese(AlignedText& text) {
    AlignedText result = AlignedText::like(text);
    result.reserve(text.bytes().size());
    for_each_character(text.bytes(), [&](const DecodedChar& character, std::size_t begin, std::size_t end) {
      const std::uint32_t c = character.code_point;
      const bool chinese = is_bert_ideograph(c);
      if (chinese) result.append_as(text, begin, " ");
      result.append_kept(text, begin, end);
      if (chinese) result.append_as(text, begin, " ");
    });
    text = std::move(result);
  }

  BertNormalization bert_;
};

class CharsmapStep : public NormalizeStep {
 public:
  CharsmapStep(const normalizer::Precompiled& step, const std::string& where) : map_(step.charsmap, where) {}
  void apply(AlignedText& text, Regex::Matcher&) const override { replace_clusters(text, map_); }

 private:
  Charsmap map_;
};

class SentencePieceStep : public NormalizeStep {
 public:
  SentencePieceStep(const normalizer::SentencePiece& step, const std::string& where) : step_(step, where) {}
  void apply(AlignedText& text, Regex::Matcher&) const override { step_.apply(text); }

 private:
  SentencePieceText step_;
};

using StepPointer = std::shared_ptr<const NormalizeStep>;

StepPointer compile(const Normalizer& step, const std::string& where) {
  struct Visit {
    const std::string& where;
    StepPointer operator()(const normalizer::UnicodeForm& s) const { return std::make_shared<FormStep>(s); }
    StepPointer operator()(const normalizer::Lowercase&) const { return std::make_shared<LowercaseStep>(); }
    StepPointer operator()(const normalizer::StripAccents&) const { return std::make_shared<StripAccentsStep>(); }
    StepPointer operator()(const normalizer::Strip& s) const { return std::make_shared<StripStep>(s); }
    StepPointer operator()(const normalizer::Replace& s) const { return std::make_shared<ReplaceStep>(s, where); }
    StepPointer operator()(const normalizer::Prepend& s) const { return std::make_shared<PrependStep>(s); }
    StepPointer operator()(const BertNormalization& s) const { return std::make_shared<BertStep>(s); }
    StepPointer operator()(const normalizer::Precompiled& s) const { return std::make_shared<CharsmapStep>(s, where); }
    StepPointer operator()(const normalizer::SentencePiece& s) const {
      return std::make_shared<SentencePieceStep>(s, where);
    }
    StepPointer operator()(const normalizer::ByteLevel&) const { return nullptr; }
  };
  return std::visit(Visit{where}, step);
}

}  // namespace

NormalizeSteps::NormalizeSteps(const std::vector<Normalizer>& normalizers, const std::string& where) {
  for (const Normalizer& normalizer : normalizers)
    if (StepPointer step = compile(normalizer, where)) steps_.push_back(std::move(step));
}

std::string to_lower_case(const std::string& text) {
  std::size_t replaced = 0;
  AlignedText lowered(text, 0, /*aligned=*/false, /*stand_in_base=*/0, replaced);
  lower_case(lowered);
  return lowered.bytes();
}

}  // namespace megatron::text
