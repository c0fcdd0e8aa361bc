#include "megatron/config/megatron/yaml_file.h"

#include <yaml.h>

#include <algorithm>
#include <array>
#include <map>
#include <new>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/text/printable.h"

namespace megatron::config {
namespace {

constexpr std::size_t kMaxText = std::size_t{1} << 20, kMaxValues = 100'000;

/// libyaml's events, one after the other. It keeps what is open on the heap, so no text exhausts the stack.
class Events {
 public:
  Events(std::string_view text, const std::string& name) : name_(name) {
    if (yaml_parser_initialize(&parser_) == 0) throw std::bad_alloc();
    yaml_parser_set_encoding(&parser_, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&parser_, reinterpret_cast<const unsigned char*>(text.data()), text.size());
  }
  ~Events() {
    yaml_event_delete(&event_);
    yaml_parser_delete(&parser_);
  }
  Events(const Events&) = delete;
  Events& operator=(const Events&) = delete;

  const yaml_event_t& now() const { return event_; }
  yaml_event_type_t type() const { return event_.type; }
  std::size_t line() const { return event_.start_mark.line + 1; }

  void next() {
    yaml_event_delete(&event_);
    if (yaml_parser_parse(&parser_, &event_) == 0)
      fail("the file must be YAML.", parser_.problem == nullptr ? "no YAML" : parser_.problem,
           parser_.problem_mark.line + 1, "mend the line");
  }

  [[noreturn]] void fail(const std::string& rule, const std::string& got, std::size_t line, const std::string& fix) {
    throw ConfigError(rule_got_fix(concat(name_, ":", line, ": ", rule), got, fix));
  }
  [[noreturn]] void refuse(const std::string& rule, const std::string& got, const std::string& fix) {
    fail(rule, got, line(), fix);
  }

 private:
  const std::string& name_;
  yaml_parser_t parser_{};
  yaml_event_t event_{};
};

template <std::size_t N>
bool is_one_of(std::string_view text, const std::array<std::string_view, N>& words) {
  return std::ranges::find(words, text) != words.end();
}

/// What a word without quotes is in YAML 1.1.
YamlScalar plain(std::string text) {
  static constexpr std::array<std::string_view, 5> kNull = {"", "~", "null", "Null", "NULL"};
  static constexpr std::array<std::string_view, 9> kTrue = {"yes",  "Yes", "YES", "true", "True",
                                                            "TRUE", "on",  "On",  "ON"};
  static constexpr std::array<std::string_view, 9> kFalse = {"no",    "No",  "NO",  "false", "False",
                                                             "FALSE", "off", "Off", "OFF"};
  YamlScalar scalar{.kind = YamlScalar::Kind::Text, .truth = false, .text = std::move(text)};
  if (is_one_of(scalar.text, kNull)) scalar.kind = YamlScalar::Kind::Null;
  if (is_one_of(scalar.text, kTrue) || is_one_of(scalar.text, kFalse)) scalar.kind = YamlScalar::Kind::Bool;
  scalar.truth = is_one_of(scalar.text, kTrue);
  return scalar;
}

/// 010 is eight there, and ten wherever else a file of options is read.
bool is_octal(std::string_view text) {
  if (text.starts_with('-') || text.starts_with('+')) text.remove_prefix(1);
  return text.size() > 1 && text[0] == '0' && text.find_first_not_of("01234567_") == std::string_view::npos;
}

YamlScalar scalar_of(Events& events) {
  const auto& scalar = events.now().data.scalar;
  std::string text(reinterpret_cast<const char*>(scalar.value), scalar.length);
  if (scalar.anchor != nullptr)
    events.refuse("a file of options has no anchors.", "an anchor", "write the value itself");
  if (scalar.tag != nullptr) events.refuse("a file of options has no tags.", printable(text), "write the value alone");
  if (text.find('\0') != std::string::npos)
    events.refuse("a value must have no zero bytes.", printable(text), "write another value");
  if (text.find("${") != std::string::npos)
    events.refuse("variables are not replaced in values.", printable(text), "write the value out");
  const bool is_plain = scalar.style == YAML_PLAIN_SCALAR_STYLE;
  if (is_plain && is_octal(text))
    events.refuse("a number must not begin with 0: YAML reads it in base 8.", printable(text),
                  "write it in base 10, or in quotes");
  events.next();
  return is_plain ? plain(std::move(text)) : YamlScalar{.kind = YamlScalar::Kind::Text, .truth = false, .text = text};
}

class Reader {
 public:
  explicit Reader(Events& events) : events_(events) {}

  std::vector<YamlEntry> document() {
    events_.next();
    while (events_.type() == YAML_STREAM_START_EVENT || events_.type() == YAML_DOCUMENT_START_EVENT) events_.next();
    if (events_.type() == YAML_STREAM_END_EVENT || events_.type() != YAML_MAPPING_START_EVENT)
      events_.refuse("the file must be one mapping of keys to values.", "something else", "KEY: VALUE lines");
    mapping("");
    while (events_.type() == YAML_DOCUMENT_END_EVENT) events_.next();
    if (events_.type() != YAML_STREAM_END_EVENT)
      events_.refuse("the file must be one document.", "another behind it", "leave the documents behind `---` out");
    return std::move(entries_);
  }

 private:
  void mapping(const std::string& section) {
    if (events_.now().data.mapping_start.anchor != nullptr || events_.now().data.mapping_start.tag != nullptr)
      events_.refuse("a file of options has no anchors and no tags.", "one before a mapping", "leave it out");
    events_.next();
    while (events_.type() != YAML_MAPPING_END_EVENT) {
      if (events_.type() != YAML_SCALAR_EVENT)
        events_.refuse("a key must be a word.", kind_of(events_.type()), "KEY: VALUE");
      YamlEntry entry{.section = section, .key = "", .is_list = false, .values = {}, .line = events_.line()};
      entry.key = scalar_of(events_).text;
      const auto [first, is_new] = seen_.emplace(entry.path(), entry.line);
      if (!is_new)
        events_.fail("a key must be given once.", concat(printable(entry.path()), ", in line ", first->second, " too"),
                     entry.line, "leave one of the two out");
      value(std::move(entry));
    }
    events_.next();
  }

  void value(YamlEntry entry) {
    if (events_.type() == YAML_SCALAR_EVENT) {
      entry.values.push_back(scalar_of(events_));
    } else if (events_.type() == YAML_SEQUENCE_START_EVENT) {
      entry.is_list = true;
      list(entry);
    } else if (events_.type() == YAML_MAPPING_START_EVENT && entry.section.empty()) {
      return mapping(entry.key);
    } else {
      events_.refuse(concat("the value of ", printable(entry.path()), " must be a scalar or a list of scalars."),
                     kind_of(events_.type()), "write the value itself");
    }
    count_ += entry.values.size();
    if (count_ > kMaxValues)
      events_.refuse(concat("a file of options has at most ", kMaxValues, " values."), "more", "leave some out");
    entries_.push_back(std::move(entry));
  }

  void list(YamlEntry& entry) {
    if (events_.now().data.sequence_start.anchor != nullptr || events_.now().data.sequence_start.tag != nullptr)
      events_.refuse("a file of options has no anchors and no tags.", "one before a list", "leave it out");
    events_.next();
    for (; events_.type() != YAML_SEQUENCE_END_EVENT; entry.values.push_back(scalar_of(events_)))
      if (events_.type() != YAML_SCALAR_EVENT)
        events_.refuse(concat("the list of ", printable(entry.path()), " must have scalars alone."),
                       kind_of(events_.type()), "write the values themselves");
    events_.next();
  }

  static const char* kind_of(yaml_event_type_t type) {
    switch (type) {
      case YAML_ALIAS_EVENT:
        return "an alias";
      case YAML_SEQUENCE_START_EVENT:
        return "a list";
      case YAML_MAPPING_START_EVENT:
        return "a mapping";
      default:
        return "something else";
    }
  }

  Events& events_;
  std::vector<YamlEntry> entries_;
  std::map<std::string, std::size_t> seen_;
  std::size_t count_ = 0;
};

}  // namespace

std::vector<YamlEntry> read_yaml(std::string_view text, const std::string& name) {
  if (text.size() > kMaxText)
    throw ConfigError(rule_got_fix(name + ": a file of options has at most 1 MiB.", concat(text.size(), " bytes"),
                                   "name the file of the options"));
  Events events(text, name);
  return Reader(events).document();
}

}  // namespace megatron::config
