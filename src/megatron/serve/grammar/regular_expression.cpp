#include "megatron/serve/grammar/regular_expression.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/text/utf8.h"
#include "megatron/serve/grammar/json_characters.h"

namespace megatron::serve {
namespace {

using Machine = CharacterMachine;

constexpr std::size_t kMaxMachineStates = 4000, kMaxGroups = 100;
constexpr std::uint32_t kMaxTimes = 1000;

struct Node {
  enum class Kind : std::uint8_t { Characters, Sequence, Choice, Repeat, Start, End };
  Kind kind = Kind::Sequence;
  CodePoints characters = {};
  std::vector<Node> parts = {};
  std::uint32_t least = 0;
  std::optional<std::uint32_t> most = {};
};

CodePoints digits() { return {{'0', '9'}}; }
CodePoints word() { return {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}; }
CodePoints space() {
  return {{0x9, 0xD},       {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
          {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
}

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Node whole() {
    if (!valid_utf8(text_)) refuse("is no UTF-8");
    Node node = choice(0);
    if (at_ < text_.size()) refuse("has a ) that closes nothing");
    return node;
  }

 private:
  [[noreturn]] void refuse(std::string_view why) const {
    std::size_t end = std::min<std::size_t>(text_.size(), 200);
    while (end < text_.size() && end > 0 && (static_cast<unsigned char>(text_[end]) & 0xC0) == 0x80) --end;
    refuse_schema(concat("'pattern' in the schema ", why, ": ", text_.substr(0, end)));
  }
  [[noreturn]] void refuse_construct(std::string_view what) const {
    refuse(concat("has '", what, "', which is not supported"));
  }

  bool ended() const { return at_ == text_.size(); }
  bool next_is(std::string_view what) const { return text_.substr(at_).starts_with(what); }
  bool take(std::string_view what) {
    if (!next_is(what)) return false;
    at_ += what.size();
    return true;
  }
  std::uint32_t character() {
    const DecodedChar c = decode_utf8(text_.data() + at_, text_.data() + text_.size());
    at_ += static_cast<std::size_t>(c.length);
    return c.code_point;
  }

  Node choice(std::size_t depth) {
    if (depth > kMaxGroups) refuse("is nested too deeply");
    Node node{.kind = Node::Kind::Choice, .parts = {sequence(depth)}};
    while (take("|")) node.parts.push_back(sequence(depth));
    return node;
  }

  Node sequence(std::size_t depth) {
    Node node{.kind = Node::Kind::Sequence};
    while (!ended() && !next_is("|") && !next_is(")")) node.parts.push_back(repeated(depth));
    return node;
  }

  Node repeated(std::size_t depth) {
    Node one = single(depth);
    const bool assertion = one.kind == Node::Kind::Start || one.kind == Node::Kind::End;
    const auto times = quantifier();
    if (!times) return one;
    if (assertion) refuse("repeats what matches no character");
    take("?");  // as few as possible: the same strings
    if (quantifier()) refuse("has a quantifier behind a quantifier");
    return {.kind = Node::Kind::Repeat, .parts = {std::move(one)}, .least = times->first, .most = times->second};
  }

  using Times = std::pair<std::uint32_t, std::optional<std::uint32_t>>;

  std::optional<Times> quantifier() {
    if (take("*")) return Times{0, std::nullopt};
    if (take("+")) return Times{1, std::nullopt};
    if (take("?")) return Times{0, 1};
    if (!next_is("{")) return std::nullopt;
    const std::size_t before = at_++;
    const auto least = number();
    std::optional<std::uint32_t> most = least;
    if (least && take(",")) most = number();
    if (!least || !take("}")) {  // a brace of the text
      at_ = before;
      return std::nullopt;
    }
    if (*least > kMaxTimes || (most && *most > kMaxTimes)) refuse(concat("repeats more than ", kMaxTimes, " times"));
    if (most && *most < *least) refuse("has a quantifier whose numbers are in the wrong order");
    return Times{*least, most};
  }

  std::optional<std::uint32_t> number() {
    std::uint32_t value = 0;
    const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
    if (error == std::errc::invalid_argument) return std::nullopt;
    at_ = static_cast<std::size_t>(end - text_.data());
    return error == std::errc() ? value : kMaxTimes + 1;
  }

  Node single(std::size_t depth) {
    if (take("^")) return {.kind = Node::Kind::Start};
    if (take("$")) return {.kind = Node::Kind::End};
    if (take("(")) return group(depth);
    if (take("[")) return characters(set());
    if (take(".")) return characters(complement({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}));
    if (take("\\")) return characters(escape(false));
    if (quantifier()) refuse("has a quantifier with nothing before it");
    const std::uint32_t c = character();
    return characters({{c, c}});
  }

  static Node characters(const CodePoints& set) {
    return {.kind = Node::Kind::Characters, .characters = characters_of(set)};
  }

  Node group(std::size_t depth) {
    if (take("?")) {
      for (const char* around : {"=", "!", "<=", "<!"})
        if (next_is(around)) refuse_construct(concat("(?", around));
      if (take("<") || take("P<")) {
        const std::size_t end = text_.find('>', at_);
        if (end == std::string_view::npos) refuse("has a group whose name has no end");
        at_ = end + 1;
      } else if (!take(":")) {
        refuse("has a '(?' with flags or what is not known");
      }
    }
    Node node = choice(depth + 1);
    if (!take(")")) refuse("has a ( without its )");
    return node;
  }

  CodePoints set() {
    const bool others = take("^");
    CodePoints all;
    while (!take("]")) {
      if (ended()) refuse("has a [ without its ]");
      const CodePoints from = of_set();
      if (!next_is("-") || text_.substr(at_ + 1).starts_with(']')) {
        all.insert(all.end(), from.begin(), from.end());
        continue;
      }
      ++at_;
      if (ended()) refuse("has a [ without its ]");
      const CodePoints to = of_set();
      const auto one = [](const CodePoints& of) { return of.size() == 1 && of[0].first == of[0].second; };
      if (!one(from) || !one(to)) refuse("has a range in [ ] whose end is no character");
      if (from[0].first > to[0].first) refuse("has a range in [ ] whose ends are in the wrong order");
      all.emplace_back(from[0].first, to[0].first);
    }
    all = in_order(std::move(all));
    return others ? complement(all) : all;
  }

  CodePoints of_set() {
    if (take("\\")) return escape(true);
    const std::uint32_t c = character();
    return {{c, c}};
  }

  /// What follows a backslash.
  CodePoints escape(bool in_set) {
    if (ended()) refuse("ends with a backslash");
    const std::uint32_t c = character();
    switch (c) {
      case 'd':
        return digits();
      case 'D':
        return complement(digits());
      case 'w':
        return word();
      case 'W':
        return complement(word());
      case 's':
        return space();
      case 'S':
        return complement(space());
      case 't':
        return {{'\t', '\t'}};
      case 'n':
        return {{'\n', '\n'}};
      case 'r':
        return {{'\r', '\r'}};
      case 'f':
        return {{'\f', '\f'}};
      case 'v':
        return {{'\v', '\v'}};
      case 'x':
        return hex(2);
      case 'u':
        return take("{") ? braced_hex() : hex(4);
      case 'b':
        if (in_set) return {{'\b', '\b'}};
        break;
      case '0':
        if (ended() || text_[at_] < '0' || text_[at_] > '9') return {{0, 0}};
        break;
      default:
        break;
    }
    const bool letter_or_digit = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
    if (letter_or_digit) refuse_construct(concat("\\", static_cast<char>(c)));
    return {{c, c}};
  }

  CodePoints hex(std::size_t length) {
    const std::string_view code = text_.substr(at_, length);
    if (code.size() < length) refuse("has an escape whose number is too short");
    at_ += length;
    return code_point(code);
  }
  CodePoints braced_hex() {
    const std::size_t end = text_.find('}', at_);
    if (end == std::string_view::npos) refuse("has an escape whose number has no end");
    const std::string_view code = text_.substr(at_, end - at_);
    at_ = end + 1;
    return code_point(code);
  }
  CodePoints code_point(std::string_view code) const {
    std::uint32_t value = 0;
    const auto [end, error] = std::from_chars(code.data(), code.data() + code.size(), value, 16);
    if (error != std::errc() || end != code.data() + code.size() || value > 0x10FFFF)
      refuse("has an escape whose number is none of a character");
    if (value >= 0xD800 && value <= 0xDFFF) refuse("has an escape of half a character: write \\u{…}");
    return {{value, value}};
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

class Builder {
 public:
  Machine built(const Node& node) {
    machine_.start = state();
    machine_.end = add(node, machine_.start);
    return std::move(machine_);
  }

 private:
  std::size_t state() {
    if (machine_.states.size() == kMaxMachineStates)
      refuse_schema("'pattern' in the schema is too large: its quantifiers repeat too much");
    machine_.states.emplace_back();
    return machine_.states.size() - 1;
  }
  void step(std::size_t from, std::size_t to, Machine::Free when = Machine::Free::Always) {
    machine_.states[from].free.push_back({to, when});
  }
  std::size_t set_of(const CodePoints& characters) {
    const auto [at, added] = sets_.try_emplace(characters, machine_.sets.size());
    if (added) machine_.sets.push_back(characters);
    return at->second;
  }

  /// The state after what the node matches from a state on. Each takes a state at least, so that no nesting of
  /// quantifiers takes long before it is too large.
  std::size_t add(const Node& node, std::size_t from) {
    const std::size_t to = state();
    switch (node.kind) {
      case Node::Kind::Characters:
        machine_.states[from].reading.push_back({to, set_of(node.characters)});
        break;
      case Node::Kind::Start:
        step(from, to, Machine::Free::AtStart);
        break;
      case Node::Kind::End:
        step(from, to, Machine::Free::AtEnd);
        break;
      case Node::Kind::Sequence: {
        std::size_t last = from;
        for (const Node& part : node.parts) last = add(part, last);
        step(last, to);
        break;
      }
      case Node::Kind::Choice:
        for (const Node& part : node.parts) step(add(part, from), to);
        break;
      case Node::Kind::Repeat: {
        std::size_t last = from;
        for (std::uint32_t i = 0; i < node.least; ++i) last = add(node.parts[0], last);
        if (!node.most) {
          const std::size_t again = state();
          step(last, again);
          step(add(node.parts[0], again), again);
          last = again;
        }
        for (std::uint32_t i = node.least; node.most && i < *node.most; ++i) {
          step(last, to);
          last = add(node.parts[0], last);
        }
        step(last, to);
        break;
      }
    }
    return to;
  }

  Machine machine_;
  std::map<CodePoints, std::size_t> sets_;
};

}  // namespace

CharacterMachine machine_of(std::string_view pattern) { return Builder().built(Parser(pattern).whole()); }

}  // namespace megatron::serve
