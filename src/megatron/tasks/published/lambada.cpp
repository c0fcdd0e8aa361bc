#include "megatron/tasks/published/lambada.h"

#include "megatron/base/error.h"
#include "megatron/base/files/regular_file.h"
#include "megatron/base/text/printable.h"
#include "megatron/data/files/byte_stream.h"
#include "megatron/tasks/published/json_input.h"

namespace megatron::tasks {

data::TextFormat lambada_format_of(std::string_view name) {
  if (name == "auto") return data::TextFormat::Auto;
  if (name == "jsonl") return data::TextFormat::Jsonl;
  if (name == "lines" || name == "plain") return data::TextFormat::Lines;
  throw ConfigError(
      rule_got_fix("--format must be auto, jsonl or lines.", std::string(name), "--format auto (the default)"));
}

Passage split_last_word(std::string_view text) {
  const std::size_t blank = text.rfind(' ');
  if (blank == std::string_view::npos || blank == 0 || blank + 1 == text.size())
    throw ConfigError(rule_got_fix("a passage must have a space before its last word, and text on both sides of it.",
                                   concat("\"", printable(text.substr(0, 80)), "\""),
                                   "take the passage out, or --format jsonl where each line is an object"));
  return {std::string(text.substr(0, blank)), std::string(text.substr(blank))};
}

namespace {

/// JSON lines begin with a brace.
data::TextFormat format_of_content(const std::string& path) {
  data::check_readable({path});
  data::ByteStream stream(path);
  std::string text(4096, '\0');
  text.resize(stream.read(text));
  const std::size_t first = text.find_first_not_of(" \t\r\n", text.starts_with("\xEF\xBB\xBF") ? 3 : 0);
  return first != std::string::npos && text[first] == '{' ? data::TextFormat::Jsonl : data::TextFormat::Lines;
}

}  // namespace

std::vector<Passage> read_lambada(const std::string& path, data::TextFormat format, std::int64_t limit) {
  check_regular(path);
  if (format == data::TextFormat::Auto) format = format_of_content(path);
  data::TextReader reader({.inputs = {path}, .format = format, .max_document_bytes = 1 << 20});
  std::vector<Passage> passages;
  std::string text;
  while ((limit == 0 || static_cast<std::int64_t>(passages.size()) < limit) && reader.next(text))
    at_place([&] { return concat(path, ", passage ", passages.size() + 1); },
             [&] {
               if (format == data::TextFormat::Lines && text.starts_with("{\"text\""))
                 throw ConfigError(rule_got_fix("a plain passage must be text.", "JSON", "--format jsonl"));
               passages.push_back(split_last_word(text));
             });
  if (passages.empty())
    throw ConfigError(
        rule_got_fix("a file of passages must have one.", "none in " + path, "--data FILE, the published one"));
  return passages;
}

}  // namespace megatron::tasks
