#define PCRE2_CODE_UNIT_WIDTH 8
#include "megatron/text/regex.h"

#include <pcre2.h>

#include <algorithm>
#include <limits>

#include "megatron/base/error.h"
#include "megatron/text/byte_level.h"
#include "megatron/text/unicode_classes.h"

namespace megatron::text {
namespace {

constexpr std::size_t kMaxPattern = 16384;

template <auto Free>
struct FreeWith {
  void operator()(auto* p) const { Free(p); }
};

}  // namespace

struct Regex::Code {
  std::unique_ptr<pcre2_code, FreeWith<pcre2_code_free>> code;
  std::string where, pattern;
};

struct Regex::Matcher::State {
  std::unique_ptr<pcre2_match_context, FreeWith<pcre2_match_context_free>> context{pcre2_match_context_create(nullptr)};
  std::unique_ptr<pcre2_match_data, FreeWith<pcre2_match_data_free>> data{pcre2_match_data_create(1, nullptr)};
  std::unique_ptr<pcre2_jit_stack, FreeWith<pcre2_jit_stack_free>> stack{
      pcre2_jit_stack_create(std::size_t{32} << 10, std::size_t{8} << 20, nullptr)};
};

Regex::Regex(std::string_view pattern, const std::string& where) : code_(std::make_unique<Code>()) {
  code_->where = where;
  code_->pattern = pattern;
  if (pattern.size() > kMaxPattern)
    throw ConfigError(rule_got_fix(concat(where, ": an expression must have at most ", kMaxPattern, " bytes"),
                                   concat(pattern.size(), " bytes")));
  const std::string translated = to_pcre2(pattern, where);
  const std::unique_ptr<pcre2_compile_context, FreeWith<pcre2_compile_context_free>> context(
      pcre2_compile_context_create(nullptr));
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  std::size_t offset = 0;
  code_->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                                  PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &offset,
                                  context.get()));
  if (!code_->code) {
    PCRE2_UCHAR message[256] = {};
    pcre2_get_error_message(error, message, sizeof message);
    throw ConfigError(rule_got_fix(concat(where, ": must be a regular expression"),
                                   concat(printable(pattern), ": ", reinterpret_cast<const char*>(message))));
  }
  pcre2_jit_compile(code_->code.get(), PCRE2_JIT_COMPLETE);  // where there is none, the interpreter matches the same
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

Regex::Matcher::Matcher() : state_(std::make_unique<State>()) {
  pcre2_jit_stack_assign(state_->context.get(), nullptr, state_->stack.get());
}
Regex::Matcher::~Matcher() = default;
Regex::Matcher::Matcher(Matcher&&) noexcept = default;
Regex::Matcher& Regex::Matcher::operator=(Matcher&&) noexcept = default;

std::size_t Regex::Matcher::character_size(std::string_view text, std::size_t at) {
  if (at >= text.size()) return 1;
  return static_cast<std::size_t>(std::max(decode_utf8(text.data() + at, text.data() + text.size()).length, 1));
}

bool Regex::Matcher::find(const Regex& regex, std::string_view text, std::size_t from, std::size_t& begin,
                          std::size_t& end) {
  // A good expression needs a few steps a byte for one match; a bad one could need more than there is time for.
  const std::size_t steps = std::size_t{1000000} + 16 * text.size();
  pcre2_set_match_limit(state_->context.get(), static_cast<std::uint32_t>(std::min<std::size_t>(steps, 0x7FFFFFFF)));
  const int result = pcre2_match(regex.code_->code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                                 PCRE2_NO_UTF_CHECK, state_->data.get(), state_->context.get());
  if (result == PCRE2_ERROR_NOMATCH) return false;
  if (result < 0) {
    PCRE2_UCHAR message[256] = {};
    pcre2_get_error_message(result, message, sizeof message);
    throw ConfigError(
        rule_got_fix(concat(regex.code_->where,
                            ": an expression must match a text in a number of steps that grows as the text does"),
                     concat(printable(regex.code_->pattern), " at byte ", from, " of ", text.size(), ": ",
                            reinterpret_cast<const char*>(message))));
  }
  const std::size_t* found = pcre2_get_ovector_pointer(state_->data.get());
  begin = found[0];
  end = std::max(found[0], found[1]);
  return true;
}

}  // namespace megatron::text
