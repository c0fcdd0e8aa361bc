#include "megatron/corpus/filter/filter.h"

#include <memory>
#include <numeric>
#include <optional>

#include "megatron/base/error.h"
#include "megatron/base/files/outputs.h"
#include "megatron/corpus/filter/blocklist.h"
#include "megatron/corpus/filter/language.h"
#include "megatron/corpus/output_file.h"
#include "megatron/corpus/records.h"
#include "megatron/corpus/words.h"

namespace megatron::corpus {
namespace {

struct Filtered {
  std::string kept, rejected;
  FilterResult counts;
};

std::vector<std::string> inputs_of(const FilterOptions& options) {
  std::vector<std::string> inputs = options.text.inputs;
  for (const auto& lists : {options.block_domains, options.block_urls})
    inputs.insert(inputs.end(), lists.begin(), lists.end());
  return inputs;
}

/// What all threads look things up in.
struct Rules {
  explicit Rules(const FilterOptions& wanted) : options(wanted), languages(wanted.languages) {
    for (const std::string& path : options.block_domains) blocklist.add_domains(path);
    for (const std::string& path : options.block_urls) blocklist.add_urls(path);
  }
  const FilterOptions& options;
  LanguageFilter languages;
  Blocklist blocklist;
};

/// One thread's judge of documents.
class Judge {
 public:
  explicit Judge(const Rules& rules) : rules_(rules), options_(rules.options), parser_(options_.text) {
    if (options_.tokenizer != nullptr) encoder_.emplace(options_.tokenizer->encoder());
  }

  void operator()(const CorpusBlock& block, Filtered& result) {
    result.kept.clear();
    result.rejected.clear();
    result.counts = {};
    for (std::size_t i = 0; i < block.text.records.size(); ++i) {
      std::size_t text_bytes = 0;
      bool has_url = false;
      const std::optional<Reason> reason = judge(block.text, i, text_bytes, has_url);
      ++result.counts.documents;
      if (!has_url && reason != Reason::BadLine && !rules_.blocklist.empty()) ++result.counts.without_url;
      result.counts.text_bytes += static_cast<std::int64_t>(text_bytes);
      if (reason) {
        ++result.counts.rejected[static_cast<std::size_t>(*reason)];
        if (!options_.rejected.empty()) append_rejected(block.text, i, *reason, result.rejected);
      } else {
        ++result.counts.kept;
        result.counts.kept_text_bytes += static_cast<std::int64_t>(text_bytes);
        append_record(block.text, i, options_.text.format, result.kept);
      }
    }
  }

 private:
  std::optional<Reason> judge(const data::TextBlock& block, std::size_t record, std::size_t& text_bytes,
                              bool& has_url) {
    std::string_view text;
    try {
      text = joined(parser_.parse(block, record), buffer_);
    } catch (const ConfigError&) {
      if (!options_.skip_bad_lines) throw;
      return Reason::BadLine;
    }
    text_bytes = text.size();
    if (block.is_json && !rules_.blocklist.empty()) {
      const auto& at = block.records[record];
      const auto member = find_member(std::string_view(block.bytes).substr(at.begin, at.size), options_.url_key);
      const auto url = member ? string_value(member->value) : std::nullopt;
      has_url = url.has_value();
      if (url && rules_.blocklist.blocks(*url)) return Reason::Url;
    }
    try {
      if (options_.min_tokens > 0 && is_short(text)) return Reason::Short;
    } catch (const ConfigError& error) {  // a text that the tokenizer refuses
      if (!options_.skip_bad_lines) throw ConfigError(data::place_of(block, block.records[record]) + error.what());
      return Reason::BadLine;
    }
    if (!rules_.languages.passes(text)) return Reason::Language;
    return std::nullopt;
  }

  bool is_short(std::string_view text) {
    if (encoder_) {
      ids_.clear();
      encoder_->encode_append(text, ids_);
      return static_cast<std::int64_t>(ids_.size()) < options_.min_tokens;
    }
    Word word{};
    scanner_.start(text);
    for (std::int64_t words = 0; words < options_.min_tokens; ++words)
      if (!scanner_.next(word)) return true;
    return false;
  }

  static void append_rejected(const data::TextBlock& block, std::size_t record, Reason reason, std::string& out) {
    const auto& at = block.records[record];
    const std::string_view text = std::string_view(block.bytes).substr(at.begin, at.too_long ? 0 : at.size);
    const std::string member = concat("\"rejected\": \"", reason_name(reason), "\"");
    if (at.too_long)
      out += concat("{", member, ", \"file\": ", json_string(block.file), ", \"line\": ", at.line, "}");
    else if (block.is_json && reason != Reason::BadLine)
      out += with_member(text, member);
    else
      out += "{" + member + ", \"text\": " + json_string(text) + "}";
    out += '\n';
  }

  const Rules& rules_;
  const FilterOptions& options_;
  data::DocumentParser parser_;
  std::optional<text::Encoder> encoder_;
  WordScanner scanner_;
  std::vector<std::int32_t> ids_;
  std::string buffer_;
};

}  // namespace

const char* reason_name(Reason reason) {
  switch (reason) {
    case Reason::BadLine:
      return "bad_line";
    case Reason::Url:
      return "url";
    case Reason::Short:
      return "short";
    case Reason::Language:
      return "language";
  }
  return "";
}

FilterResult filter(const FilterOptions& options, const OnProgress& progress) {
  if (options.workers < 1)
    throw ConfigError(rule_got_fix("there must be a worker.", concat(options.workers), "--workers 0, one a core"));
  if (options.min_tokens < 0)
    throw ConfigError(
        rule_got_fix("the least number of tokens must be 0 or more.", concat(options.min_tokens), "--min-tokens 0"));
  check_has_records(options.text);
  if (!(options.block_domains.empty() && options.block_urls.empty()) && options.text.format != data::TextFormat::Auto &&
      options.text.format != data::TextFormat::Jsonl)
    throw ConfigError(rule_got_fix("blocklists need documents with URLs, which are JSON lines.",
                                   "a format of plain text",
                                   "leave --block-domains and --block-urls out, or filter JSON lines"));
  check_outputs({options.output, options.rejected}, inputs_of(options));
  const Rules rules(options);
  data::BlockReader reader(options.text);
  std::unique_ptr<OutputFile> output, rejected;
  if (!options.output.empty()) output = std::make_unique<OutputFile>(options.output);
  if (!options.rejected.empty()) rejected = std::make_unique<OutputFile>(options.rejected);

  FilterResult total;
  const auto consume = [&](const CorpusBlock& block, Filtered& result) {
    if (output) output->write(result.kept);
    if (rejected) rejected->write(result.rejected);
    total.documents += result.counts.documents;
    total.kept += result.counts.kept;
    total.without_url += result.counts.without_url;
    total.text_bytes += result.counts.text_bytes;
    total.kept_text_bytes += result.counts.kept_text_bytes;
    for (std::size_t i = 0; i < kReasons; ++i) total.rejected[i] += result.counts.rejected[i];
    if (progress) progress(block.text.input_position, reader.total_bytes().value_or(0));
  };
  for_each_block<Filtered>(
      reader, options.workers, [&] { return Judge(rules); }, consume);
  if (output) {
    total.output_bytes = output->size();
    output->commit();
  }
  if (rejected) rejected->commit();
  return total;
}

}  // namespace megatron::corpus
