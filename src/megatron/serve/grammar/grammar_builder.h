#pragma once
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "megatron/serve/grammar/grammar.h"

namespace megatron::serve {

/// Throws ApiError 400 about the schema of a request.
[[noreturn]] void refuse_schema(const std::string& what);

/// The bytes from the one to the other.
ByteSet bytes_from(int from, int to);
ByteSet any_byte_of(std::string_view bytes);
/// The bytes one after another.
Grammar::Sequence literal(std::string_view text);
Grammar::Sequence joined(std::initializer_list<Grammar::Sequence> parts);

/// A grammar as it is written, rule by rule, up to a size: a small schema can ask for a large grammar. Throws ApiError
/// 400 beyond it.
class GrammarBuilder {
 public:
  std::int32_t add_rule() { return grammar_.add_rule(); }
  void add(std::int32_t rule, const Grammar::Sequence& alternative);
  std::int32_t rule_with(const std::vector<Grammar::Sequence>& alternatives);
  /// Up to `most` of `one`, at least `least`; most < 0: any number.
  std::int32_t repeated(const Grammar::Sequence& one, std::int64_t least, std::int64_t most);
  /// Throws where as many more symbols are too many.
  void need_room(std::size_t symbols) const;
  /// Counts steps of finding rules out, and throws where they take too long.
  void spend(std::size_t steps);

  Grammar take() { return std::move(grammar_); }

 private:
  Grammar grammar_;
  std::size_t spent_ = 0;
};

}  // namespace megatron::serve
