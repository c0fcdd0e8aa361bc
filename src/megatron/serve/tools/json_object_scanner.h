#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace megatron::serve {

inline bool is_json_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

/// Finds the end of a JSON object that comes byte by byte, or the byte that makes it none, and the values of its
/// members. What it takes for an object has still to be parsed: keys may come twice, and bytes be no UTF-8.
class JsonObjectScanner {
 public:
  enum class Step : std::uint8_t { More, Done, Bad };

  /// The object begins with the first byte. After Done or Bad it takes none.
  Step push(char c);

  /// The key of the outermost object's member that was begun last, as it is written between its quotes.
  const std::string& member() const { return member_; }
  /// Whether the byte pushed last is part of that member's value.
  bool in_value() const { return in_value_; }

 private:
  enum class State : std::uint8_t {
    Start,
    FirstKey,
    Key,
    Colon,
    FirstValue,
    Value,
    String,
    Escape,
    Hex,
    Scalar,
    After
  };

  Step step(char c);
  Step begin_value(char c);
  Step close(char bracket);

  State state_ = State::Start;
  std::string open_;    ///< the brackets that are not closed
  std::string scalar_;  ///< a number, true, false or null
  std::string member_;
  bool is_key_ = false;  ///< of a string
  int hex_digits_ = 0;
  bool in_value_ = false;
};

}  // namespace megatron::serve
