#include "megatron/tasks/lambada.h"

#include "megatron/base/error.h"
#include "megatron/base/printable.h"
#include "megatron/base/regular_file.h"
#include "megatron/data/text_reader.h"
#include "megatron/tasks/json_input.h"

namespace megatron::tasks {

LambadaFormat lambada_format_of(std::string_view name) {
  if (name == "jsonl") return LambadaFormat::Jsonl;
  if (name == "plain") return LambadaFormat::Plain;
  throw ConfigError(
      rule_got_fix("--format must be jsonl or plain.", std::string(name), "--format jsonl (the default)"));
}

Passage split_last_word(std::string_view text) {
  const std::size_t blank = text.rfind(' ');
  if (blank == std::string_view::npos || blank == 0 || blank + 1 == text.size())
    throw ConfigError(rule_got_fix("a passage must have a blank before its last word, and text on both sides of it.",
                                   concat("\"", printable(text.substr(0, 80)), "\"")));
  return {std::string(text.substr(0, blank)), std::string(text.substr(blank))};
}

std::vector<Passage> read_lambada(const std::string& path, LambadaFormat format, std::int64_t limit) {
  const bool json = format == LambadaFormat::Jsonl;
  check_regular(path);
  data::TextReader reader({.inputs = {path},
                           .format = json ? data::TextFormat::Jsonl : data::TextFormat::Lines,
                           .max_document_bytes = 1 << 20});
  std::vector<Passage> passages;
  std::string text;
  while ((limit == 0 || static_cast<std::int64_t>(passages.size()) < limit) && reader.next(text))
    at_place([&] { return concat(path, ", passage ", passages.size() + 1); },
             [&] {
               if (!json && text.starts_with("{\"text\""))
                 throw ConfigError(rule_got_fix("a plain passage must be text.", "JSON", "--format jsonl"));
               passages.push_back(split_last_word(text));
             });
  if (passages.empty())
    throw ConfigError(rule_got_fix("a file of passages must have one.", "none in " + path, "name the published file"));
  return passages;
}

}  // namespace megatron::tasks
