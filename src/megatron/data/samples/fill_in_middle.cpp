#include "megatron/data/samples/fill_in_middle.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/philox.h"

namespace megatron::data {

/// The numbers of one sample, in the order in which they are drawn.
class FillInMiddle::Random {
 public:
  Random(std::uint64_t key, std::int64_t sample) : key_(key), sample_(static_cast<std::uint64_t>(sample)) {}

  bool chance(double probability) { return word() < probability * 4294967296.0; }
  /// Uniform in [0, top], to 2^-32.
  std::size_t below_or_at(std::size_t top) { return static_cast<std::size_t>(word() * (std::uint64_t{top} + 1) >> 32); }

 private:
  std::uint64_t word() { return random_word(key_, sample_, index_++); }

  std::uint64_t key_, sample_, index_ = 0;
};

namespace {

/// Where the characters of UTF-8 text begin, and its end. A byte that continues no character begins one.
std::vector<std::size_t> character_begins(std::string_view text) {
  std::vector<std::size_t> begins;
  for (std::size_t i = 0; i < text.size(); ++i)
    if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) begins.push_back(i);
  begins.push_back(text.size());
  return begins;
}

/// Calls `use` with what stands between tokens `mark`, and whether a mark follows.
template <class Use>
void for_each_between(std::span<const std::int32_t> tokens, std::int32_t mark, Use use) {
  for (auto begin = tokens.begin();;) {
    const auto end = std::find(begin, tokens.end(), mark);
    use(std::span<const std::int32_t>(begin, end), end != tokens.end());
    if (end == tokens.end()) return;
    begin = end + 1;
  }
}

}  // namespace

FillInMiddle::FillInMiddle(const FillInMiddleOptions& options, const text::Tokenizer& tokenizer, std::uint64_t key)
    : options_(options), tokenizer_(tokenizer), key_(key) {
  for (const double rate : {options.rate, options.spm_rate, options.fragment_rate})
    if (!(rate >= 0 && rate <= 1))
      throw ConfigError(rule_got_fix("a rate of fill-in-the-middle must be from 0 to 1.", concat(rate),
                                     "--fim.rate 0.5 --fim.spm_rate 0.5 (the defaults)"));
  for (const std::int32_t token : {options.prefix, options.middle, options.suffix, options.pad, options.eod})
    if (token < 0 || token >= tokenizer.vocab_size())
      throw ConfigError(rule_got_fix(
          "fill-in-the-middle needs tokens for prefix, middle, suffix, padding and end of document.", concat(token),
          "a tokenizer that has them, or their names here: --fim-prefix-token and the others"));
}

void FillInMiddle::add_permuted(std::span<const std::int32_t> text, double rate, Random& random,
                                std::vector<std::int32_t>& out) const {
  const auto keep = [&] { out.insert(out.end(), text.begin(), text.end()); };
  if (!random.chance(rate)) return keep();
  const std::string whole = tokenizer_.decode(text);
  if (!options_.no_prefix.empty() && whole.starts_with(options_.no_prefix)) return keep();
  const std::vector<std::size_t> begins = character_begins(whole);
  std::size_t first = begins[random.below_or_at(begins.size() - 1)];
  std::size_t second = begins[random.below_or_at(begins.size() - 1)];
  if (first > second) std::swap(first, second);
  const auto add = [&](std::size_t begin, std::size_t end) {
    const auto ids = tokenizer_.encode(std::string_view(whole).substr(begin, end - begin), text::Specials::Recognised);
    out.insert(out.end(), ids.begin(), ids.end());
  };
  const bool suffix_first = random.chance(options_.spm_rate);
  out.push_back(options_.prefix);
  if (!suffix_first) add(0, first);
  out.push_back(options_.suffix);
  add(second, whole.size());
  out.push_back(options_.middle);
  if (suffix_first) add(0, first);
  add(first, second);
}

void FillInMiddle::add_document(std::span<const std::int32_t> document, Random& random,
                                std::vector<std::int32_t>& out) const {
  if (options_.split < 0 || std::ranges::find(document, options_.split) == document.end())
    return add_permuted(document, options_.rate, random, out);
  if (!random.chance(options_.rate)) {
    out.insert(out.end(), document.begin(), document.end());
    return;
  }
  for_each_between(document, options_.split, [&](std::span<const std::int32_t> fragment, bool more) {
    if (fragment.empty() && more) return;  // as Megatron-LM: its separator goes too
    add_permuted(fragment, options_.fragment_rate, random, out);
    if (more) out.push_back(options_.split);
  });
}

void FillInMiddle::operator()(std::int64_t i, std::span<std::int64_t> tokens) const {
  for (const std::int64_t token : tokens)
    if (token < 0 || token >= tokenizer_.vocab_size()) return;  // for the check of tokens, which names the sample
  const std::vector<std::int32_t> text(tokens.begin(), tokens.end());
  std::vector<std::int32_t> changed;
  Random random(key_, i);
  for_each_between(text, options_.eod, [&](std::span<const std::int32_t> document, bool more) {
    if (document.empty() && more) return;
    add_document(document, random, changed);
    if (more) changed.push_back(options_.eod);
  });
  changed.resize(tokens.size(), options_.pad);
  std::ranges::copy(changed, tokens.begin());
}

}  // namespace megatron::data
