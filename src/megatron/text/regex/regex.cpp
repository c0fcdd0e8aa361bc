#define PCRE2_CODE_UNIT_WIDTH 8
#include "megatron/text/regex/regex.h"

#include <pcre2.h>

#include <algorithm>
#include <list>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/base/text/printable.h"
#include "megatron/text/characters/byte_level.h"
#include "megatron/text/characters/unicode_classes.h"
#include "megatron/text/regex/regex_alphabet.h"

namespace megatron::text {
namespace {

constexpr std::size_t kMaxPattern = 16384;
// A good expression needs a few steps and looks a few bytes ahead for one match: that much is free at each byte where a
// match may begin. What needs more is taken from a budget that grows as the text does.
constexpr std::uint32_t kFreeSteps = 256;
constexpr std::size_t kFreeBytes = 512, kFreeStarts = 256;
constexpr std::size_t kBudget = 65536, kBudgetPerByte = 128;

template <auto Free>
struct FreeWith {
  void operator()(auto* p) const { Free(p); }
};

}  // namespace

struct Regex::Code {
  /// Compiled now, or found among the last: a tokenizer that is read again has the same expressions, and a decoder
  /// needs its own for each text (decode.cpp), where compiling one takes milliseconds.
  static std::shared_ptr<const Code> of(std::string_view pattern, const std::string& where);

  Code(std::string_view expression, const std::string& whose);

  std::unique_ptr<pcre2_code, FreeWith<pcre2_code_free>> code;
  std::string where, pattern;
  std::vector<std::uint8_t> kinds;  // of each code point (regex_alphabet.h); empty: matched as it is
};

struct Regex::Matcher::State {
  std::unique_ptr<pcre2_match_context, FreeWith<pcre2_match_context_free>> context{pcre2_match_context_create(nullptr)};
  std::unique_ptr<pcre2_match_data, FreeWith<pcre2_match_data_free>> data{pcre2_match_data_create(1, nullptr)};
  std::unique_ptr<pcre2_jit_stack, FreeWith<pcre2_jit_stack_free>> stack{
      pcre2_jit_stack_create(std::size_t{32} << 10, std::size_t{8} << 20, nullptr)};
  std::string kinds;  // of the characters of the text

  State() { pcre2_jit_stack_assign(context.get(), nullptr, stack.get()); }
};

Regex::Code::Code(std::string_view expression, const std::string& whose) : where(whose), pattern(expression) {
  if (pattern.size() > kMaxPattern)
    throw ConfigError(rule_got_fix(concat(where, ": an expression must have at most ", kMaxPattern, " bytes"),
                                   concat(pattern.size(), " bytes")));
  const std::string translated = to_pcre2(expression, where);
  const std::unique_ptr<pcre2_compile_context, FreeWith<pcre2_compile_context_free>> context(
      pcre2_compile_context_create(nullptr));
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  const auto compile = [&](const std::string& own, std::uint32_t options) {
    int error = 0;
    std::size_t offset = 0;
    code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(own.data()), own.size(),
                             options | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C | PCRE2_USE_OFFSET_LIMIT, &error,
                             &offset, context.get()));
    if (code) return;
    PCRE2_UCHAR message[256] = {};
    pcre2_get_error_message(error, message, sizeof message);
    throw ConfigError(rule_got_fix(concat(where, ": must be a regular expression"),
                                   concat(in_quotes(pattern), ": ", reinterpret_cast<const char*>(message))));
  };
  compile(translated, PCRE2_UTF | PCRE2_UCP);
  if (std::optional<RegexAlphabet> alphabet = alphabet_of(translated)) {
    compile(alphabet->pattern, 0);
    kinds = std::move(alphabet->kinds);
  }
  pcre2_jit_compile(
      code.get(),
      PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD);  // where there is none, the interpreter matches the same
}

std::shared_ptr<const Regex::Code> Regex::Code::of(std::string_view pattern, const std::string& where) {
  constexpr std::size_t kMostKept = 16;  // of a megabyte each
  static std::mutex mutex;
  static std::list<std::shared_ptr<const Code>> kept;  // what was asked for last is first
  {
    const std::lock_guard lock(mutex);
    const auto found =
        std::ranges::find_if(kept, [&](const auto& each) { return each->pattern == pattern && each->where == where; });
    if (found != kept.end()) {
      kept.splice(kept.begin(), kept, found);
      return kept.front();
    }
  }
  auto compiled = std::make_shared<const Code>(pattern, where);
  const std::lock_guard lock(mutex);
  kept.push_front(compiled);
  if (kept.size() > kMostKept) kept.pop_back();
  return compiled;
}

Regex::Regex(std::string_view pattern, const std::string& where) : code_(Code::of(pattern, where)) {}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

Regex::Matcher::Matcher() = default;
Regex::Matcher::~Matcher() = default;
Regex::Matcher::Matcher(Matcher&&) noexcept = default;
Regex::Matcher& Regex::Matcher::operator=(Matcher&&) noexcept = default;

std::size_t Regex::Matcher::character_size(std::string_view subject, std::size_t at) const {
  if (at >= subject.size() || by_kind_) return 1;
  return static_cast<std::size_t>(
      std::max(decode_utf8(subject.data() + at, subject.data() + subject.size()).length, 1));
}

/// The place at or behind `at` where a character begins.
std::size_t Regex::Matcher::character_begin(std::string_view subject, std::size_t at) const {
  if (at >= subject.size()) return subject.size();
  while (!by_kind_ && at < subject.size() && (static_cast<unsigned char>(subject[at]) & 0xC0) == 0x80) ++at;
  return at;
}

std::string_view Regex::Matcher::start(const Regex& regex, std::string_view text) {
  if (!state_) state_ = std::make_unique<State>();
  place_ = byte_ = 0;
  budget_ = kBudget + kBudgetPerByte * text.size();
  const std::vector<std::uint8_t>& kinds = regex.code_->kinds;
  by_kind_ = !kinds.empty();
  has_wide_ = false;
  if (!by_kind_) return text;
  std::string& all = state_->kinds;
  if (all.size() < text.size()) all.resize(text.size());
  char* out = all.data();
  const char* const end = text.data() + text.size();
  for (const char* p = text.data(); p < end; ++out) {
    const DecodedChar c = decode_utf8(p, end);
    *out = static_cast<char>(kinds[c.code_point]);
    p += std::max(c.length, 1);
  }
  const auto size = static_cast<std::size_t>(out - all.data());
  has_wide_ = size != text.size();
  return {all.data(), size};
}

/// One try: matches that begin in [from, last], with `steps` for each beginning, in the text up to `ahead`.
Regex::Matcher::Result Regex::Matcher::attempt(const Regex& regex, std::string_view text, std::size_t from,
                                               std::size_t last, std::size_t ahead, std::uint32_t steps) {
  pcre2_match_context* const context = state_->context.get();
  pcre2_set_match_limit(context, steps);
  pcre2_set_offset_limit(context, last);
  const std::uint32_t options = PCRE2_NO_UTF_CHECK | (ahead < text.size() ? PCRE2_PARTIAL_HARD : 0);
  const int result = pcre2_match(regex.code_->code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), ahead, from,
                                 options, state_->data.get(), context);
  if (result >= 0) return Result::Found;
  if (result == PCRE2_ERROR_NOMATCH) return Result::None;
  if (result == PCRE2_ERROR_PARTIAL || result == PCRE2_ERROR_MATCHLIMIT) return Result::Hard;
  PCRE2_UCHAR message[256] = {};
  pcre2_get_error_message(result, message, sizeof message);
  refuse(regex, text, from, reinterpret_cast<const char*>(message));
}

void Regex::Matcher::refuse(const Regex& regex, std::string_view text, std::size_t at, const std::string& why) {
  throw ConfigError(rule_got_fix(
      concat(regex.code_->where, ": an expression must match a text in a number of steps that grows as the text does"),
      concat(in_quotes(regex.code_->pattern), " at character or byte ", at, " of ", text.size(), ": ", why),
      "another tokenizer, or shorter documents"));
}

/// A match that begins at `from`, where the free steps and bytes were too few: twice as many again and again.
Regex::Matcher::Result Regex::Matcher::attempt_hard(const Regex& regex, std::string_view text, std::size_t from) {
  std::size_t bytes = kFreeBytes;
  std::uint32_t steps = kFreeSteps;
  for (;;) {
    bytes *= 2;
    steps = std::min(steps * 2, std::uint32_t{1} << 30);
    const std::size_t cost = steps + std::min(bytes, text.size() - from);
    if (cost > budget_) refuse(regex, text, from, "too many");
    budget_ -= cost;
    const Result result = attempt(regex, text, from, from, character_begin(text, from + bytes), steps);
    if (result != Result::Hard) return result;
  }
}

bool Regex::Matcher::find(const Regex& regex, std::string_view text, std::size_t from, std::size_t& begin,
                          std::size_t& end) {
  Result result = Result::None;
  for (std::size_t starts = kFreeStarts; from <= text.size();) {
    const std::size_t next = character_begin(text, from + starts);  // where the next try begins
    const bool is_last = from + starts > text.size();
    const std::size_t last = is_last ? text.size() : starts == 1 ? from : next - 1;
    result = attempt(regex, text, from, last, character_begin(text, from + starts + kFreeBytes), kFreeSteps);
    if (result == Result::Hard && starts > 1) {
      starts = 1;
      continue;
    }
    if (result == Result::Hard)
      result = attempt_hard(regex, text, from);
    else
      starts = std::min(2 * starts, kFreeStarts);
    if (result == Result::Found || is_last) break;
    from = next;
  }
  if (result != Result::Found) return false;
  const std::size_t* found = pcre2_get_ovector_pointer(state_->data.get());
  begin = found[0];
  end = std::max(found[0], found[1]);
  return true;
}

}  // namespace megatron::text
