#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace megatron::text {

/// A regular expression of a tokenizer file, in Oniguruma's Ruby syntax (Hugging Face); fancy-regex's (tiktoken) agrees
/// with it on what the known expressions use. Matched by PCRE2; general categories, \s, \d, \w and \b are those of
/// Unicode 16 whatever the library knows, scripts (\p{Han}) are the library's. Constant once built; every thread
/// matches through its own Matcher.
class Regex {
 public:
  /// Throws ConfigError, beginning with `where`, for what is no expression or would mean something else to PCRE2. One
  /// of the last expressions is not compiled again.
  Regex(std::string_view pattern, const std::string& where);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  /// Finds matches on one thread.
  class Matcher {
   public:
    Matcher();
    ~Matcher();
    Matcher(Matcher&&) noexcept;
    Matcher& operator=(Matcher&&) noexcept;

    /// Calls `match(begin, end)` for each match in `text` (valid UTF-8), in order; they do not overlap, and an empty
    /// one does not follow another match at once. Throws ConfigError where the expression needs too many steps for a
    /// text.
    template <class OnMatch>
    void for_each(const Regex& regex, std::string_view text, const OnMatch& match) {
      std::size_t from = 0, begin = 0, end = 0;
      const std::string_view subject = start(regex, text);
      for (bool any = false; from <= subject.size() && find(regex, subject, from, begin, end);) {
        if (begin == end && any && end == last_) {
          from += character_size(subject, from);
          continue;
        }
        const std::size_t begin_byte = byte_of(text, begin);
        match(begin_byte, byte_of(text, end));
        from = last_ = end;
        any = true;
      }
    }

   private:
    enum class Result : std::uint8_t { Found, None, Hard };

    /// What PCRE2 is given for the text: itself, or a byte for the kind of each character.
    std::string_view start(const Regex& regex, std::string_view text);
    /// Where `place` of that is in the text; asked for places in order.
    std::size_t byte_of(std::string_view text, std::size_t place) {
      if (!has_wide_) return place;
      for (; place_ < place; ++place_) {
        const auto lead = static_cast<unsigned char>(text[byte_]);
        byte_ += lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
      }
      return byte_;
    }
    [[noreturn]] static void refuse(const Regex& regex, std::string_view text, std::size_t at, const std::string& why);
    Result attempt(const Regex& regex, std::string_view text, std::size_t from, std::size_t last, std::size_t ahead,
                   std::uint32_t steps);
    Result attempt_hard(const Regex& regex, std::string_view text, std::size_t from);
    bool find(const Regex& regex, std::string_view text, std::size_t from, std::size_t& begin, std::size_t& end);
    std::size_t character_size(std::string_view subject, std::size_t at) const;
    std::size_t character_begin(std::string_view subject, std::size_t at) const;

    struct State;
    std::unique_ptr<State> state_;  // made when the first expression is matched
    bool by_kind_ = false;          // each byte of what PCRE2 is given is a character
    bool has_wide_ = false;         // and those of the text are not
    std::size_t place_ = 0, byte_ = 0;
    std::size_t last_ = 0;
    std::size_t budget_ = 0;  // steps and bytes that hard places may still take
  };

 private:
  struct Code;
  std::shared_ptr<const Code> code_;
};

/// The expression that PCRE2 is given for `pattern`.
std::string to_pcre2(std::string_view pattern, const std::string& where);

}  // namespace megatron::text
