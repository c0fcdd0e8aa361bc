#include "megatron/data/samples/fill_in_middle.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "megatron/base/error.h"
#include "megatron/data/part_dataset.h"
#include "tests/data/byte_tokenizer.h"

namespace megatron::data {
namespace {

constexpr std::int32_t kPrefix = 256, kMiddle = 257, kSuffix = 258, kPad = 259, kEod = 260, kSplit = 261;

FillInMiddleOptions options_of(double rate, double spm_rate = 0.5) {
  return {.rate = rate,
          .spm_rate = spm_rate,
          .prefix = kPrefix,
          .middle = kMiddle,
          .suffix = kSuffix,
          .pad = kPad,
          .eod = kEod};
}

text::Tokenizer tokenizer() { return byte_tokenizer({"<p>", "<m>", "<s>", "<pad>", "<eod>", "<split>"}); }

using Tokens = std::vector<std::int64_t>;

Tokens tokens_of(const std::string& text) {
  Tokens tokens;
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

std::string text_of(const Tokens& tokens) {
  std::string text;
  for (const std::int64_t token : tokens) text += static_cast<char>(token);
  return text;
}

Tokens changed(const FillInMiddleOptions& options, Tokens tokens, std::int64_t sample, std::size_t room = 0) {
  tokens.resize(tokens.size() + room, kEod);
  FillInMiddle(options, tokenizer(), 99)(sample, tokens);
  return tokens;
}

std::vector<Tokens> split(const Tokens& tokens, std::int64_t mark) {
  std::vector<Tokens> parts(1);
  for (const std::int64_t token : tokens)
    if (token == mark)
      parts.emplace_back();
    else
      parts.back().push_back(token);
  return parts;
}

/// The document that was made this: what stands after the marks, put back in order.
struct Parts {
  std::string prefix, middle, suffix;
  bool suffix_first = false;
};

Parts parts_of(const Tokens& document) {
  const auto at = [&](std::int32_t mark) { return std::ranges::find(document, mark) - document.begin(); };
  const auto prefix = at(kPrefix), middle = at(kMiddle), suffix = at(kSuffix);
  EXPECT_EQ(prefix, 0);
  EXPECT_LT(suffix, middle);
  const auto piece = [&](std::ptrdiff_t begin, std::ptrdiff_t end) {
    return text_of(Tokens(document.begin() + begin, document.begin() + end));
  };
  const auto end = static_cast<std::ptrdiff_t>(document.size());
  return {piece(1, suffix), piece(middle + 1, end), piece(suffix + 1, middle), suffix == 1};
}

const std::string kText = "Grüße aus dem Süden: 𝄞 und noch etwas Text.";

TEST(FillInMiddle, KeepsWhatADocumentSaysWhateverTheOrderOfItsParts) {
  bool cuts_differ = false;
  std::string first;
  for (std::int64_t sample = 0; sample < 50; ++sample) {
    const Tokens out = changed(options_of(1, 0), tokens_of(kText), sample, 3);
    const Parts parts = parts_of(out);
    EXPECT_EQ(parts.prefix + parts.middle + parts.suffix, kText);
    for (const std::string& part : {parts.prefix, parts.middle, parts.suffix})
      EXPECT_TRUE(part.empty() || (static_cast<unsigned char>(part[0]) & 0xC0) != 0x80) << "cut within a character";
    if (sample == 0) first = parts.middle;
    cuts_differ |= parts.middle != first;
  }
  EXPECT_TRUE(cuts_differ);
}

TEST(FillInMiddle, WritesTheSuffixFirstWhereItIsAsked) {
  for (std::int64_t sample = 0; sample < 20; ++sample) {
    const Tokens out = changed(options_of(1, 1), tokens_of(kText), sample, 3);
    ASSERT_EQ(out[0], kPrefix);
    ASSERT_EQ(out[1], kSuffix);
    const Parts parts = parts_of(out);  // after the middle's mark: prefix and middle
    EXPECT_EQ(parts.middle + parts.suffix, kText);
  }
}

TEST(FillInMiddle, ChangesTheShareOfDocumentsThatItIsAsked) {
  int count = 0, spm = 0;
  for (std::int64_t sample = 0; sample < 2000; ++sample) {
    const Tokens out = changed(options_of(0.25, 0.75), tokens_of(kText), sample, 3);
    count += out[0] == kPrefix ? 1 : 0;
    spm += out[0] == kPrefix && out[1] == kSuffix ? 1 : 0;
  }
  EXPECT_NEAR(count, 500, 100);
  EXPECT_NEAR(static_cast<double>(spm) / count, 0.75, 0.07);
  EXPECT_EQ(changed(options_of(0), tokens_of(kText), 1), tokens_of(kText));
}

TEST(FillInMiddle, TreatsEachDocumentOfASampleByItselfAndKeepsItsLength) {
  Tokens text = tokens_of("first document");
  text.push_back(kEod);
  const Tokens second = tokens_of("the second one");
  text.insert(text.end(), second.begin(), second.end());
  text.push_back(kEod);
  const Tokens out = changed(options_of(1, 0), text, 3, 20);
  EXPECT_EQ(out.size(), text.size() + 20);
  const auto documents = split(out, kEod);
  ASSERT_GE(documents.size(), 3u);
  for (const auto& [document, expected] :
       {std::pair{documents[0], "first document"}, {documents[1], "the second one"}}) {
    const Parts parts = parts_of(document);
    EXPECT_EQ(parts.prefix + parts.middle + parts.suffix, expected);
  }
  EXPECT_EQ(changed(options_of(1, 0), text, 3).size(), text.size()) << "cut at the end";
  Tokens gaps = {kEod, kEod, kEod, 'x', kEod};  // empty documents go with their marks, as in Megatron-LM
  EXPECT_EQ(changed(options_of(0), gaps, 0), (Tokens{'x', kEod, kPad, kPad, kPad}));
}

TEST(FillInMiddle, ChangesTheFragmentsOfADocumentByThemselves) {
  FillInMiddleOptions options = options_of(1, 0);
  options.split = kSplit;
  options.fragment_rate = 1;
  Tokens text = tokens_of("one file");
  text.push_back(kSplit);
  const Tokens second = tokens_of("another");
  text.insert(text.end(), second.begin(), second.end());
  const Tokens out = changed(options, text, 0, 6);
  const auto fragments = split(split(out, kEod)[0], kSplit);
  ASSERT_EQ(fragments.size(), 2u);
  EXPECT_EQ(parts_of(fragments[0]).prefix + parts_of(fragments[0]).middle + parts_of(fragments[0]).suffix, "one file");
  options.fragment_rate = 0;
  EXPECT_EQ(changed(options, text, 0), text);
}

TEST(FillInMiddle, LeavesTextsWithTheForbiddenBeginAlone) {
  FillInMiddleOptions options = options_of(1);
  options.no_prefix = "#!";
  EXPECT_EQ(changed(options, tokens_of("#!/bin/sh"), 5), tokens_of("#!/bin/sh"));
  EXPECT_NE(changed(options, tokens_of("! #"), 5), tokens_of("! #"));
}

TEST(FillInMiddle, IsAFunctionOfTheSamplesNumberAlone) {
  const FillInMiddle change(options_of(1), tokenizer(), 99);
  Tokens first = tokens_of(kText), again = first;
  change(7, first);
  Tokens other = tokens_of(kText);
  change(8, other);
  change(7, again);
  EXPECT_EQ(first, again);
  EXPECT_NE(first, other);
}

TEST(FillInMiddle, NamesTheTokenThatTheTokenizerDoesNotHave) {
  config::FimConfig fim;
  fim.prefix_token = "<p>";
  fim.middle_token = "<m>";
  fim.suffix_token = "<s>";
  fim.pad_token = "<pad>";
  fim.eod_token = "<eod>";
  EXPECT_EQ(fill_in_middle_options(fim, tokenizer()).suffix, kSuffix);
  fim.middle_token = "<none>";
  try {
    fill_in_middle_options(fim, tokenizer());
    FAIL();
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find("fim.middle_token"), std::string::npos) << e.what();
  }
  EXPECT_THROW(FillInMiddle(options_of(1.5), tokenizer(), 0), ConfigError);
  EXPECT_THROW(FillInMiddle({}, tokenizer(), 0), ConfigError);
}

}  // namespace
}  // namespace megatron::data
