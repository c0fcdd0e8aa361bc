#include "megatron/serve/grammar/number_range.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <map>
#include <tuple>
#include <vector>

namespace megatron::serve {
namespace {

using Sequence = Grammar::Sequence;

constexpr std::size_t kDigits = 15, kMaxDecimalDigits = 400;

/// What is written after the sign.
struct Magnitude {
  std::string whole = "0", fraction;
  bool exclusive = false;
};

bool is_zero(const Decimal& value) { return value.whole == "0" && value.fraction.empty(); }

std::string plus_one(std::string digits) {
  std::size_t at = digits.size();
  while (at > 0 && digits[at - 1] == '9') digits[--at] = '0';
  if (at == 0) return "1" + digits;
  ++digits[at - 1];
  return digits;
}

/// Nothing of "0".
std::optional<std::string> less_one(std::string digits) {
  if (digits == "0") return std::nullopt;
  std::size_t at = digits.size();
  while (digits[at - 1] == '0') digits[--at] = '9';
  --digits[at - 1];
  if (digits.size() > 1 && digits[0] == '0') digits.erase(0, 1);
  return digits;
}

bool less_or_equal(const std::string& a, const std::string& b) {
  return a.size() != b.size() ? a.size() < b.size() : a <= b;
}

/// Whole numbers that are multiples of one. States are how many digits are left and the remainder of those before.
class WholeNumbers {
 public:
  WholeNumbers(GrammarBuilder& grammar, std::int64_t multiple) : grammar_(grammar), multiple_(multiple) {}

  std::int32_t between(const std::string& least, const std::string& most) {
    const std::int32_t rule = grammar_.add_rule();
    for (std::size_t digits = least.size(); digits <= most.size() && less_or_equal(least, most); ++digits)
      add_of_length(rule, digits == least.size() ? least : "1" + std::string(digits - 1, '0'),
                    digits == most.size() ? most : std::string(digits, '9'));
    return rule;
  }

  /// Of any length: remainders alone are states then.
  std::int32_t from(const std::string& least) {
    const std::int32_t rule = grammar_.add_rule();
    add_of_length(rule, least, std::string(least.size(), '9'));
    for (const auto& [remainder, digits] : by_remainder(0, '1', '9'))
      grammar_.add(rule, {Grammar::bytes(digits), Grammar::rule(longer(least.size(), remainder))});
    return rule;
  }

 private:
  void add_of_length(std::int32_t rule, const std::string& least, const std::string& most) {
    least_ = least;
    most_ = most;
    bounded_.clear();
    grammar_.add(rule, {Grammar::rule(after(0, true, true, 0))});
  }

  std::map<std::int64_t, ByteSet> by_remainder(std::int64_t before, char low, char high) const {
    std::map<std::int64_t, ByteSet> ways;
    for (char digit = low; digit <= high; ++digit)
      ways[(before * 10 + (digit - '0')) % multiple_].set(static_cast<unsigned char>(digit));
    return ways;
  }

  /// At least `least` more digits.
  std::int32_t longer(std::size_t least, std::int64_t remainder) {
    std::int32_t& known = longer_[{least, remainder}];
    if (known != 0) return known - 1;
    const std::int32_t rule = grammar_.add_rule();
    known = rule + 1;
    if (least == 0 && remainder == 0) grammar_.add(rule, {});
    for (const auto& [rest, digits] : by_remainder(remainder, '0', '9'))
      grammar_.add(rule, {Grammar::bytes(digits), Grammar::rule(longer(least == 0 ? 0 : least - 1, rest))});
    return rule;
  }

  std::int32_t after(std::size_t written, bool at_least, bool at_most, std::int64_t remainder) {
    const std::size_t left = least_.size() - written;
    std::int32_t& known =
        at_least || at_most ? bounded_[{written, at_least, at_most, remainder}] : free_[{left, remainder}];
    if (known != 0) return known - 1;
    const std::int32_t rule = grammar_.add_rule();
    known = rule + 1;
    if (left == 0) {
      if (remainder == 0) grammar_.add(rule, {});
      return rule;
    }
    const char low = at_least ? least_[written] : '0', high = at_most ? most_[written] : '9';
    // Digits that lead to the same are one alternative.
    std::map<std::tuple<bool, bool, std::int64_t>, ByteSet> ways;
    for (char digit = low; digit <= high; ++digit)
      ways[{at_least && digit == low, at_most && digit == high, (remainder * 10 + (digit - '0')) % multiple_}].set(
          static_cast<unsigned char>(digit));
    for (const auto& [way, digits] : ways) {
      const auto [still_least, still_most, rest] = way;
      grammar_.add(rule, {Grammar::bytes(digits), Grammar::rule(after(written + 1, still_least, still_most, rest))});
    }
    return rule;
  }

  GrammarBuilder& grammar_;
  std::int64_t multiple_;
  std::string least_, most_;
  std::map<std::tuple<std::size_t, bool, bool, std::int64_t>, std::int32_t> bounded_;
  std::map<std::pair<std::size_t, std::int64_t>, std::int32_t> free_, longer_;
};

/// What follows whole digits: fractions, point included, that are at least the one and at most the other.
class Fractions {
 public:
  Fractions(GrammarBuilder& grammar, const Magnitude* least, const Magnitude* most, std::size_t digits)
      : grammar_(grammar), least_(least), most_(most), digits_(digits) {
    // Fewer digits than usual are those of a multiple, and stay.
    for (const Magnitude* bound : {least, most})
      if (bound != nullptr && digits >= kDigits)
        digits_ = std::max(digits_, bound->fraction.size() + (bound->exclusive ? 1 : 0));
  }

  std::int32_t rule() {
    std::vector<Sequence> ways;
    if (may_end(0, least_ != nullptr, most_ != nullptr)) ways.emplace_back();
    if (digits_ > 0) ways.push_back({Grammar::byte('.'), Grammar::rule(after(0, least_ != nullptr, most_ != nullptr))});
    return grammar_.rule_with(ways);
  }

 private:
  static char digit_of(const Magnitude* bound, std::size_t at) {
    return at < bound->fraction.size() ? bound->fraction[at] : '0';
  }

  /// Whether the number may end after digits that are as those of the bounds so far.
  bool may_end(std::size_t written, bool at_least, bool at_most) const {
    if (at_least && (written < least_->fraction.size() || least_->exclusive)) return false;
    return !at_most || written < most_->fraction.size() || !most_->exclusive;
  }

  /// The digits after those, of which there is one at least.
  std::int32_t after(std::size_t written, bool at_least, bool at_most) {
    std::int32_t& known = known_[{written, at_least, at_most}];
    if (known != 0) return known - 1;
    const std::int32_t rule = grammar_.add_rule();
    known = rule + 1;
    const char low = at_least ? digit_of(least_, written) : '0', high = at_most ? digit_of(most_, written) : '9';
    std::map<std::pair<bool, bool>, ByteSet> ways;
    for (char digit = low; digit <= high; ++digit)
      ways[{at_least && digit == low, at_most && digit == high}].set(static_cast<unsigned char>(digit));
    for (const auto& [way, digits] : ways) {
      const auto [still_least, still_most] = way;
      if (may_end(written + 1, still_least, still_most)) grammar_.add(rule, {Grammar::bytes(digits)});
      if (written + 1 < digits_)
        grammar_.add(rule, {Grammar::bytes(digits), Grammar::rule(after(written + 1, still_least, still_most))});
    }
    return rule;
  }

  GrammarBuilder& grammar_;
  const Magnitude* least_;
  const Magnitude* most_;
  std::size_t digits_;
  std::map<std::tuple<std::size_t, bool, bool>, std::int32_t> known_;
};

std::int32_t whole_magnitudes(GrammarBuilder& grammar, WholeNumbers& numbers, const Magnitude& least,
                              const std::optional<Magnitude>& most, std::int64_t multiple) {
  std::string low = least.whole, high = std::string(std::max(kDigits, low.size() + 1), '9');
  if (!least.fraction.empty() || least.exclusive) low = plus_one(low);
  if (most) {
    high = most->whole;
    if (most->fraction.empty() && most->exclusive) {
      const auto below = less_one(high);
      if (!below) return grammar.add_rule();
      high = *below;
    }
  }
  return most || multiple == 1 ? numbers.between(low, high) : numbers.from(low);
}

std::int32_t magnitudes(GrammarBuilder& grammar, const Magnitude& least, const std::optional<Magnitude>& most,
                        std::size_t digits) {
  const std::int32_t rule = grammar.add_rule();
  const auto with = [&](const std::string& whole, const Magnitude* low, const Magnitude* high) {
    grammar.add(rule, joined({literal(whole), {Grammar::rule(Fractions(grammar, low, high, digits).rule())}}));
  };
  if (most && most->whole == least.whole) {
    with(least.whole, &least, &*most);
    return rule;
  }
  if (most && !less_or_equal(least.whole, most->whole)) return rule;
  with(least.whole, &least, nullptr);
  const std::string above = plus_one(least.whole);
  const std::string below = most ? *less_one(most->whole) : std::string(std::max(kDigits, above.size()), '9');
  if (less_or_equal(above, below))
    grammar.add(rule, {Grammar::rule(WholeNumbers(grammar, 1).between(above, below)),
                       Grammar::rule(Fractions(grammar, nullptr, nullptr, digits).rule())});
  if (most) with(most->whole, nullptr, &*most);
  return rule;
}

Magnitude magnitude_of(const NumberBound& bound) {
  return {.whole = bound.value.whole, .fraction = bound.value.fraction, .exclusive = bound.exclusive};
}

}  // namespace

bool is_below(const Decimal& a, const Decimal& b) {
  if (a.negative != b.negative) return a.negative;
  const Decimal &small = a.negative ? b : a, &large = a.negative ? a : b;
  if (small.whole != large.whole) return less_or_equal(small.whole, large.whole);
  return small.fraction < large.fraction;
}

std::optional<Decimal> decimal_of(std::string_view number) {
  Decimal value;
  value.negative = number.starts_with('-');
  if (value.negative) number.remove_prefix(1);
  const std::size_t mark = std::min(number.find_first_of("eE"), number.size());
  std::int64_t exponent = 0;
  if (mark < number.size()) {
    std::string_view text = number.substr(mark + 1);
    if (text.starts_with('+')) text.remove_prefix(1);
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), exponent);
    if (error != std::errc() || std::abs(exponent) > static_cast<std::int64_t>(kMaxDecimalDigits)) return std::nullopt;
  }
  const std::string_view digits = number.substr(0, mark);
  const std::size_t point = std::min(digits.find('.'), digits.size());
  std::string whole(digits.substr(0, point)), fraction(digits.substr(std::min(point + 1, digits.size())));
  for (; exponent > 0; --exponent) {
    whole += fraction.empty() ? '0' : fraction[0];
    if (!fraction.empty()) fraction.erase(0, 1);
  }
  for (; exponent < 0; ++exponent) {
    fraction.insert(fraction.begin(), whole.empty() ? '0' : whole.back());
    if (!whole.empty()) whole.pop_back();
  }
  whole.erase(0, whole.find_first_not_of('0'));
  fraction.erase(fraction.find_last_not_of('0') + 1);
  if (whole.size() + fraction.size() > kMaxDecimalDigits) return std::nullopt;
  value.whole = whole.empty() ? "0" : whole;
  value.fraction = fraction;
  if (is_zero(value)) value.negative = false;
  return value;
}

std::int32_t add_number_range(GrammarBuilder& grammar, const NumberRange& range, bool whole) {
  WholeNumbers numbers(grammar, range.multiple);
  const auto between = [&](const Magnitude& least, const std::optional<Magnitude>& most) {
    return whole ? whole_magnitudes(grammar, numbers, least, most, range.multiple)
                 : magnitudes(grammar, least, most, range.fraction_digits);
  };
  const auto& [least, most] = std::tie(range.least, range.most);
  const std::int32_t rule = grammar.add_rule();
  if (!most || !most->value.negative) {
    const Magnitude low = least && !least->value.negative ? magnitude_of(*least) : Magnitude();
    grammar.add(rule, {Grammar::rule(between(low, most ? std::optional(magnitude_of(*most)) : std::nullopt))});
  }
  if (!least || least->value.negative) {
    Magnitude low;
    if (most && most->value.negative) low = magnitude_of(*most);
    if (most && is_zero(most->value)) low.exclusive = most->exclusive;
    grammar.add(rule, {Grammar::byte('-'),
                       Grammar::rule(between(low, least ? std::optional(magnitude_of(*least)) : std::nullopt))});
  }
  return rule;
}

}  // namespace megatron::serve
