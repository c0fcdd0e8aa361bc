#include "megatron/text/chat/scan.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/text/printable.h"
#include "megatron/base/text/utf8.h"
#include "megatron/text/chat/python/methods.h"

namespace megatron::text {
namespace {

using Token = JinjaToken;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '_' ||
         static_cast<unsigned char>(c) >= 0x80;
}

/// Line ends as Jinja reads them, without the last.
std::string with_newlines(std::string_view source) {
  std::string text;
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
      text += '\n';
    } else {
      text += source[i];
    }
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

/// Cuts a template into pieces.
class Scanner {
 public:
  explicit Scanner(std::string_view source) : source_(source) {}

  std::vector<JinjaPiece> pieces() {
    while (at_ < source_.size()) {
      const std::size_t tag = next_tag(at_);
      add_text(at_, tag);
      at_ = tag;
      if (tag < source_.size()) read_tag();
    }
    return std::move(pieces_);
  }

 private:
  int line_of(std::size_t at) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(counted_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(at), '\n'));
    counted_ = at;
    return line_;
  }

  std::size_t next_tag(std::size_t from) const {
    for (std::size_t at = source_.find('{', from); at != std::string_view::npos; at = source_.find('{', at + 1))
      if (at + 1 < source_.size() && std::string_view("{%#").find(source_[at + 1]) != std::string_view::npos) return at;
    return source_.size();
  }

  /// The text before the tag at `end`: {%- takes all white space before it, {% those of its line.
  void add_text(std::size_t begin, std::size_t end) {
    std::string_view text = source_.substr(begin, end - begin);
    const char sign = end + 2 < source_.size() ? source_[end + 2] : ' ';
    if (end == source_.size()) {
    } else if (sign == '-') {
      text = python_strip(text, false, true);
    } else if (sign != '+' && source_[end + 1] != '{') {
      const std::size_t line = text.rfind('\n') + 1;  // 0 where there is none
      const bool begins_line = line > 0 || begin == 0 || source_[begin - 1] == '\n';
      if (begins_line && python_strip(text.substr(line)).empty()) text = text.substr(0, line);
    }
    if (text.empty()) return;
    pieces_.push_back({JinjaPiece::Kind::Text, line_of(begin), std::string(text), {}});
  }

  void skip_blanks() { at_ = source_.size() - python_strip(source_.substr(at_), true, false).size(); }

  /// Goes behind `end` (two characters) and its sign, where they are here, and the white space or the line end that
  /// follow.
  bool take_end(std::string_view end, bool cuts_line) {
    const std::string_view rest = source_.substr(std::min(at_, source_.size()));
    const bool has_sign = rest.starts_with('-') || (cuts_line && rest.starts_with('+'));
    if (!rest.substr(has_sign ? 1 : 0).starts_with(end)) return false;
    at_ += has_sign ? 3 : 2;
    if (rest[0] == '-')
      skip_blanks();
    else if (!has_sign && cuts_line && source_.substr(at_).starts_with('\n'))
      ++at_;
    return true;
  }

  void read_tag() {
    const std::size_t begin = at_;
    const char kind = source_[at_ + 1];
    at_ += 2;
    if (at_ < source_.size() && (source_[at_] == '-' || source_[at_] == '+')) ++at_;
    if (kind == '#') {
      while (!take_end("#}", true))
        if (++at_ >= source_.size()) refuse_jinja(line_of(begin), "a comment without end");
      return;
    }
    JinjaPiece piece{kind == '{' ? JinjaPiece::Kind::Output : JinjaPiece::Kind::Block, line_of(begin), "", {}};
    const std::string_view end = kind == '{' ? "}}" : "%}";
    int open = 0;  // brackets: within them "}}" is two braces
    for (;;) {
      skip_blanks();
      if (at_ >= source_.size()) refuse_jinja(piece.line, "a tag without end");
      if (piece.tokens.size() == 1 && piece.tokens[0].text == "raw" && kind == '%') {
        if (!take_end(end, false)) refuse_jinja(piece.line, "a tag \"raw\" with more than that");
        return read_raw(piece.line);
      }
      if (open == 0 && take_end(end, kind == '%')) break;
      piece.tokens.push_back(read_token());
      const Token& token = piece.tokens.back();
      if (token.kind != Token::Kind::Sign) continue;
      if (token.text == "(" || token.text == "[" || token.text == "{") ++open;
      if ((token.text == ")" || token.text == "]" || token.text == "}") && --open < 0)
        refuse_jinja(token.line, concat("\"", token.text, "\" that closes nothing"));
    }
    pieces_.push_back(std::move(piece));
  }

  /// All up to {% endraw %} is text.
  void read_raw(int line) {
    const std::size_t begin = at_;
    for (std::size_t tag = source_.find("{%", at_); tag != std::string_view::npos; tag = source_.find("{%", tag + 1)) {
      at_ = tag + 2;
      if (at_ < source_.size() && (source_[at_] == '-' || source_[at_] == '+')) ++at_;
      skip_blanks();
      if (!source_.substr(at_).starts_with("endraw")) continue;
      at_ += 6;
      skip_blanks();
      if (!take_end("%}", true)) continue;
      const std::size_t behind = at_;
      add_text(begin, tag);
      at_ = behind;
      return;
    }
    refuse_jinja(line, "a block \"raw\" without its end");
  }

  Token read_token() {
    const char first = source_[at_];
    const int line = line_of(at_);
    if (first == '\'' || first == '"') return read_string(line);
    std::size_t end = is_digit(first) ? end_of_number() : at_;
    while (end < source_.size() && is_name(source_[end])) ++end;
    Token token{is_digit(first) ? Token::Kind::Number : Token::Kind::Name, "", line};
    if (end == at_) {
      constexpr std::array<std::string_view, 6> kLong = {"==", "!=", "<=", ">=", "//", "**"};
      token.kind = Token::Kind::Sign;
      end += std::ranges::find(kLong, source_.substr(at_, 2)) == kLong.end() ? 1 : 2;
      if (std::string_view("+-/*%~[](){}=!<>.:|,").find(first) == std::string_view::npos)
        refuse_jinja(line, concat("the character ", source_.substr(at_, 1), " in a tag"));
    }
    token.text = source_.substr(at_, end - at_);
    behind_dot_ = token.text == ".";
    at_ = end;
    return token;
  }

  /// 12, 1_000, 1.5, 2e-5; behind a dot digits alone.
  std::size_t end_of_number() const {
    std::size_t end = at_;
    const auto digits = [&] {
      while (end < source_.size() && (is_digit(source_[end]) || source_[end] == '_')) ++end;
    };
    const auto digit_at = [&](std::size_t i) { return i < source_.size() && is_digit(source_[i]); };
    digits();
    if (behind_dot_) return end;
    if (source_.substr(end).starts_with('.') && digit_at(end + 1)) {
      ++end;
      digits();
    }
    if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
      const std::size_t sign = end + 1 < source_.size() && (source_[end + 1] == '-' || source_[end + 1] == '+') ? 1 : 0;
      if (digit_at(end + 1 + sign)) {
        end += 1 + sign;
        digits();
      }
    }
    return end;
  }

  /// The string that begins here, with the escapes of Python.
  Token read_string(int line) {
    Token token{Token::Kind::String, "", line};
    const char quote = source_[at_++];
    while (at_ < source_.size() && source_[at_] != quote) {
      const char c = source_[at_++];
      if (c != '\\') {
        token.text += c;
        continue;
      }
      if (at_ == source_.size()) break;
      constexpr std::string_view kEscapes = "n\nt\tr\rb\bf\fv\va\a\\\\''\"\"";
      const char escape = source_[at_++];
      std::size_t i = 0;
      while (i < kEscapes.size() && kEscapes[i] != escape) i += 2;
      if (i < kEscapes.size())
        token.text += kEscapes[i + 1];
      else if (escape == 'x' || escape == 'u' || escape == 'U')
        append_utf8(token.text, code_point(line, escape == 'x' ? 2 : escape == 'u' ? 4 : 8));
      else if (escape >= '0' && escape < '8')
        append_utf8(token.text, octal(escape));
      else if (escape == 'N')
        refuse_jinja(line, "the escape \\N in a string");
      else if (escape != '\n')  // which is left out with its backslash
        token.text += std::string{'\\', escape};
    }
    if (at_ >= source_.size()) refuse_jinja(line, "a string without end");
    ++at_;
    behind_dot_ = false;
    return token;
  }

  /// Up to three octal digits, of which `first` was the first.
  std::uint32_t octal(char first) {
    auto value = static_cast<std::uint32_t>(first - '0');
    for (int i = 0; i < 2 && at_ < source_.size() && source_[at_] >= '0' && source_[at_] < '8'; ++i)
      value = value * 8 + static_cast<std::uint32_t>(source_[at_++] - '0');
    return value;
  }

  std::uint32_t code_point(int line, std::size_t digits) {
    const std::string_view text = source_.substr(at_, digits);
    std::uint32_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
    if (text.size() < digits || error != std::errc() || end != text.data() + digits || value > 0x10FFFF ||
        (value >= 0xD800 && value < 0xE000))
      refuse_jinja(line, concat("the escape of \"", text, "\" in a string"));
    at_ += digits;
    return value;
  }

  std::string_view source_;
  std::size_t at_ = 0, counted_ = 0;
  int line_ = 1;
  bool behind_dot_ = false;  // the last token was a dot: x.0.1 are parts of parts, no fraction
  std::vector<JinjaPiece> pieces_;
};

}  // namespace

void refuse_jinja(int line, const std::string& got) {
  throw ConfigError(rule_got_fix("a chat template must be Jinja's, of the statements that are known here",
                                 concat("line ", line, ": ", printable(got))));
}

std::vector<JinjaPiece> scan_jinja(std::string_view source) {
  const std::string text = with_newlines(source);
  return Scanner(text).pieces();
}

}  // namespace megatron::text
