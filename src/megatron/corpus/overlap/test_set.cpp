#include "megatron/corpus/overlap/test_set.h"

#include <nlohmann/json.hpp>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/base/text/json.h"
#include "megatron/data/files/text_reader.h"

namespace megatron::corpus {
namespace {

using OnDocument = std::function<void(std::string_view, const std::string&, std::int64_t)>;

/// Calls `record(texts, file, line)` for each record.
template <class OnRecord>
void for_each_record(const data::TextReaderOptions& options, OnRecord&& record) {
  data::BlockReader reader(options);
  data::DocumentParser parser(options);
  for (data::TextBlock block; reader.next(block);)
    for (std::size_t i = 0; i < block.records.size(); ++i)
      record(parser.parse(block, i), block.file, block.records[i].line);
}

void read_wikitext(const TestSetOptions& options, const OnDocument& document) {
  std::string article, article_file;
  std::int64_t article_line = 1;
  const auto close = [&] {
    if (!article.empty()) document(article, article_file, article_line);
    article.clear();
  };
  const auto take = [&](const auto& texts, const std::string& file, std::int64_t line) {
    std::string_view text = texts[0];
    while (text.starts_with(' ')) text.remove_prefix(1);
    while (text.ends_with(' ')) text.remove_suffix(1);
    const bool is_title = text.size() > 4 && text.starts_with("= ") && text.ends_with(" =") && text[2] != '=';
    if (is_title || file != article_file) {
      close();
      article_file = file;
      article_line = line;
    }
    article.append(text) += '\n';
  };
  for_each_record({.inputs = options.inputs, .format = data::TextFormat::Lines}, take);
  close();
}

/// The member of a JSON object, which must have this type.
const nlohmann::json& member(const nlohmann::json& object, const char* name, nlohmann::json::value_t type,
                             const std::string& file) {
  const auto found = object.is_object() ? object.find(name) : object.end();
  if (found == object.end() || found->type() != type)
    throw ConfigError(rule_got_fix(
        concat(file,
               ": a SQuAD file has data, of these paragraphs, of these context and qas, of these "
               "question."),
        concat("no \"", name, "\" where it belongs"), "the file as it is published, or another --test-format"));
  return *found;
}

nlohmann::json read_json(const std::string& file) {
  try {
    return parse_json(read_file(file));
  } catch (const JsonError& error) {
    throw ConfigError(
        rule_got_fix(file + " must be JSON.", error.what(), "the file as it is published, or another --test-format"));
  }
}

void read_squad(const TestSetOptions& options, const OnDocument& document) {
  const std::string key = options.key.empty() ? "question" : options.key;
  if (key != "question" && key != "context")
    throw ConfigError(
        rule_got_fix("the texts of SQuAD are question or context.", key, "--test-key question (the default)"));
  using Type = nlohmann::json::value_t;
  for (const std::string& file : options.inputs) {
    const nlohmann::json root = read_json(file);
    std::int64_t number = 0;
    for (const auto& article : member(root, "data", Type::array, file))
      for (const auto& paragraph : member(article, "paragraphs", Type::array, file)) {
        const auto& context = member(paragraph, "context", Type::string, file);
        if (key == "context") document(context.get_ref<const std::string&>(), file, ++number);
        for (const auto& question : member(paragraph, "qas", Type::array, file)) {
          const auto& text = member(question, "question", Type::string, file);
          if (key == "question") document(text.get_ref<const std::string&>(), file, ++number);
        }
      }
  }
}

}  // namespace

void read_test_set(const TestSetOptions& options, const OnDocument& document) {
  if (options.inputs.empty()) throw ConfigError(rule_got_fix("there must be a test set.", "none", "--test FILE"));
  if (options.format == "wikitext") return read_wikitext(options, document);
  if (options.format == "squad") return read_squad(options, document);
  data::TextReaderOptions text{.inputs = options.inputs,
                               .format = data::text_format_of(options.format, "--test-format")};
  if (!options.key.empty()) text.json_key = options.key;
  text.key_option = "--test-key";
  text.max_document_bytes = std::size_t{1} << 30;
  for_each_record(text, [&](const auto& texts, const std::string& file, std::int64_t line) {
    for (const std::string_view one : texts) document(one, file, line);
  });
}

}  // namespace megatron::corpus
