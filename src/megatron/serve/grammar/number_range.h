#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "megatron/serve/grammar/grammar_builder.h"

namespace megatron::serve {

/// A number as decimal digits: those before the point without zeros before them ("0" for none), those after it without
/// zeros behind them.
struct Decimal {
  bool negative = false;
  std::string whole = "0", fraction;
};

/// Reads a JSON number, also one with an exponent; nothing where it has more than 400 digits.
std::optional<Decimal> decimal_of(std::string_view number);

bool is_below(const Decimal& a, const Decimal& b);

struct NumberBound {
  Decimal value;
  bool exclusive = false;
};
struct NumberRange {
  std::optional<NumberBound> least, most;
  std::int64_t multiple = 1;         ///< of whole numbers: they are multiples of this
  std::size_t fraction_digits = 15;  ///< at most, but for those of a bound
};

/// A rule of the decimal numbers, without exponent, within a range; `whole`: without fraction too. May match nothing.
std::int32_t add_number_range(GrammarBuilder& grammar, const NumberRange& range, bool whole);

}  // namespace megatron::serve
