#include "megatron/serve/tools/json_object_scanner.h"

#include <cctype>
#include <nlohmann/json.hpp>
#include <string_view>

#include "megatron/base/text/json.h"

namespace megatron::serve {
namespace {

bool is_of_scalar(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '+' || c == '.';
}

}  // namespace

JsonObjectScanner::Step JsonObjectScanner::push(char c) {
  const std::size_t depth = open_.size();
  const State before = state_;
  const bool in_string = before == State::String || before == State::Escape || before == State::Hex;
  const Step result = step(c);
  in_value_ = depth > 1 || open_.size() > 1 || (depth == 1 && in_string && !is_key_) ||
              (before == State::Value && state_ != State::Value) ||
              (before == State::Scalar && state_ == State::Scalar);
  return result;
}

JsonObjectScanner::Step JsonObjectScanner::close(char bracket) {
  if (open_.back() != bracket) return Step::Bad;
  open_.pop_back();
  state_ = State::After;
  return open_.empty() ? Step::Done : Step::More;
}

JsonObjectScanner::Step JsonObjectScanner::begin_value(char c) {
  if (c == '"') {
    is_key_ = false;
    state_ = State::String;
  } else if (c == '{' || c == '[') {
    if (open_.size() >= kMaxJsonDepth) return Step::Bad;
    open_ += c;
    state_ = c == '{' ? State::FirstKey : State::FirstValue;
  } else if (is_of_scalar(c)) {
    scalar_ = c;
    state_ = State::Scalar;
  } else {
    return Step::Bad;
  }
  return Step::More;
}

JsonObjectScanner::Step JsonObjectScanner::step(char c) {
  switch (state_) {
    case State::String:
      if (c == '"') {
        state_ = is_key_ ? State::Colon : State::After;
        return Step::More;
      }
      if (static_cast<unsigned char>(c) < 0x20) return Step::Bad;
      if (c == '\\') state_ = State::Escape;
      break;
    case State::Escape:
      if (std::string_view("\"\\/bfnrtu").find(c) == std::string_view::npos) return Step::Bad;
      hex_digits_ = 4;
      state_ = c == 'u' ? State::Hex : State::String;
      break;
    case State::Hex:
      if (std::isxdigit(static_cast<unsigned char>(c)) == 0) return Step::Bad;
      if (--hex_digits_ == 0) state_ = State::String;
      break;
    case State::Scalar:
      if (is_of_scalar(c)) {
        scalar_ += c;
        return Step::More;
      }
      if (!try_parse_json(scalar_)) return Step::Bad;
      state_ = State::After;
      return step(c);
    case State::Start:
      return c == '{' ? begin_value(c) : Step::Bad;
    default:
      if (is_json_space(c)) return Step::More;
      if (state_ == State::FirstValue && c == ']') return close('[');
      if (state_ == State::FirstValue || state_ == State::Value) return begin_value(c);
      if (state_ == State::FirstKey && c == '}') return close('{');
      if (state_ == State::FirstKey || state_ == State::Key) {
        if (c != '"') return Step::Bad;
        if (open_.size() == 1) member_.clear();
        is_key_ = true;
        state_ = State::String;
        return Step::More;
      }
      if (state_ == State::Colon) {
        state_ = State::Value;
        return c == ':' ? Step::More : Step::Bad;
      }
      if (c == '}') return close('{');
      if (c == ']') return close('[');
      if (c != ',') return Step::Bad;
      state_ = open_.back() == '{' ? State::Key : State::Value;
      return Step::More;
  }
  // A byte within a string.
  if (is_key_ && open_.size() == 1) member_ += c;
  return Step::More;
}

}  // namespace megatron::serve
