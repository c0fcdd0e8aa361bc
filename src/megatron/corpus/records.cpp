#include "megatron/corpus/records.h"

#include <nlohmann/json.hpp>

#include "megatron/base/error.h"
#include "megatron/base/text/json.h"

namespace megatron::corpus {
namespace {

constexpr const char* kFix = "--format lines or paragraphs, or JSON lines";

/// Goes through JSON text without judging it.
class JsonWalker {
 public:
  explicit JsonWalker(std::string_view text) : text_(text) {}

  bool at_end() const { return at_ >= text_.size(); }
  char here() const { return text_[at_]; }
  void blanks() {
    while (!at_end() && (here() == ' ' || here() == '\t' || here() == '\n' || here() == '\r')) ++at_;
  }
  bool take(char c) {
    blanks();
    if (at_end() || here() != c) return false;
    ++at_;
    return true;
  }
  /// A string with its quotes; empty where there is none or it does not end.
  std::string_view string() {
    blanks();
    const std::size_t begin = at_;
    if (at_end() || here() != '"') return {};
    for (++at_; !at_end(); ++at_) {
      if (here() == '\\')
        ++at_;
      else if (here() == '"')
        return text_.substr(begin, ++at_ - begin);
    }
    return {};
  }
  /// Any value; empty where there is none.
  std::string_view value() {
    blanks();
    const std::size_t begin = at_;
    if (!at_end() && here() == '"') return string();
    for (std::size_t depth = 0; !at_end();) {
      const char c = here();
      if (c == '"') {
        if (string().empty()) return {};
        continue;
      }
      if (depth == 0 && (c == ',' || c == '}' || c == ']')) break;
      if (c == '{' || c == '[') ++depth;
      if (c == '}' || c == ']') --depth;
      ++at_;
      if (depth == 0 && (c == '}' || c == ']')) break;
    }
    std::size_t end = at_;
    while (end > begin && std::string_view(" \t\r\n").find(text_[end - 1]) != std::string_view::npos) --end;
    return text_.substr(begin, end - begin);
  }

 private:
  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

void check_has_records(const data::TextReaderOptions& options) {
  if (options.format == data::TextFormat::File || options.format == data::TextFormat::Pieces)
    throw ConfigError(rule_got_fix("documents to keep or drop must be records of a file.", "whole files", kFix));
}

void append_record(const data::TextBlock& block, std::size_t record, data::TextFormat format, std::string& out) {
  if (!block.is_json && format == data::TextFormat::Auto)
    throw ConfigError(
        rule_got_fix("documents to keep or drop must be records of a file.", block.file + ", a whole text", kFix));
  const data::TextBlock::Record& at = block.records[record];
  out.append(block.bytes, at.begin, at.size);
  out += format == data::TextFormat::Paragraphs ? "\n\n" : "\n";
}

std::string_view joined(const std::vector<std::string_view>& texts, std::string& buffer) {
  if (texts.size() == 1) return texts[0];
  buffer.clear();
  for (const std::string_view text : texts) {
    if (!buffer.empty()) buffer += ' ';
    buffer += text;
  }
  return buffer;
}

std::optional<Member> find_member(std::string_view line, std::string_view key) {
  std::optional<Member> found;
  JsonWalker walker(line);
  if (!walker.take('{')) return found;
  do {
    const std::string_view name = walker.string();
    if (name.empty() || !walker.take(':')) return found;
    const std::string_view value = walker.value();
    if (value.empty()) return found;
    const bool is_escaped = name.find('\\') != std::string_view::npos;
    if (is_escaped ? string_value(name) == key : name.substr(1, name.size() - 2) == key) found = Member{.value = value};
  } while (walker.take(','));
  return found;
}

std::optional<std::string> string_value(std::string_view json) {
  if (json.size() < 2 || json.front() != '"' || json.back() != '"') return std::nullopt;
  const std::string_view inner = json.substr(1, json.size() - 2);
  if (inner.find('\\') == std::string_view::npos) return std::string(inner);
  const auto parsed = try_parse_json(json);
  return parsed && parsed->is_string() ? std::optional(parsed->get<std::string>()) : std::nullopt;
}

std::string json_string(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string with_member(std::string_view line, std::string_view member) {
  const std::size_t brace = line.find('{');
  std::string out(line.substr(0, brace + 1));
  out += member;
  const std::string_view rest = line.substr(brace + 1);
  const std::size_t next = rest.find_first_not_of(" \t\r\n");
  if (next != std::string_view::npos && rest[next] != '}') out += ", ";
  return out += rest;
}

}  // namespace megatron::corpus
