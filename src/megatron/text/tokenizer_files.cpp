#include "megatron/text/tokenizer_files.h"

#include <nlohmann/json.hpp>

#include "megatron/base/error.h"
#include "megatron/base/file.h"
#include "megatron/text/json_component.h"
#include "megatron/text/token_spellings.h"

namespace megatron::text {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxFileBytes = std::uint64_t{1} << 28;

Vocabulary read_pair(const fs::path& vocab, const fs::path& merges) {
  return parse_vocab_and_merges(read_file(vocab, kMaxFileBytes), vocab.string(), read_file(merges, kMaxFileBytes),
                                merges.string());
}

/// What tokenizer_config.json beside a vocab.txt says of normalization; lower case where there is none.
BertNormalization normalization_beside(const fs::path& folder) {
  const fs::path path = folder / "tokenizer_config.json";
  BertNormalization bert;
  if (!fs::exists(path)) return bert;
  const nlohmann::json file = parse_json(read_file(path, kMaxFileBytes), path.string());
  const Component config(file, path.string() + ": ");
  bert.lower_case = config.boolean("do_lower_case", true);
  bert.space_chinese = config.boolean("tokenize_chinese_chars", true);
  bert.strip_accents = config.boolean("strip_accents", bert.lower_case);
  return bert;
}

}  // namespace

Vocabulary parse_vocab_and_merges(std::string_view vocab_json, const std::string& vocab_name, std::string_view merges,
                                  const std::string& merges_name) {
  const nlohmann::json vocab = parse_json(vocab_json, vocab_name);
  std::vector<SpecialToken> specials;
  if (vocab.is_object() && vocab.contains("<|endoftext|>") && vocab["<|endoftext|>"].is_number_unsigned() &&
      vocab["<|endoftext|>"].get<std::uint64_t>() < vocab.size())
    specials.push_back({"<|endoftext|>", vocab["<|endoftext|>"].get<std::int32_t>(), true});
  SpellingReader reader(vocab_name);
  reader.read_tokens(vocab, std::move(specials));

  for (std::size_t at = 0; at < merges.size();) {
    const std::size_t end = std::min(merges.find('\n', at), merges.size());
    std::string_view line = merges.substr(at, end - at);
    if (line.ends_with('\r')) line.remove_suffix(1);
    const std::string where = concat(merges_name, " byte ", at);
    const bool is_header = at == 0 && line.starts_with("#version");
    at = end + 1;
    if (is_header || line.empty()) continue;
    const std::size_t space = line.find(' ');
    if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos)
      throw ConfigError(rule_got_fix(concat(where, ": a merge must be two tokens with one space between"),
                                     shortened(nlohmann::json(line))));
    reader.add_merge(line.substr(0, space), line.substr(space + 1), where);
  }
  return reader.take();
}

Vocabulary read_vocabulary(const fs::path& path) {
  const bool is_folder = fs::is_directory(path);
  const fs::path folder = is_folder ? path : path.parent_path();
  const std::string file = is_folder ? "" : path.filename().string();
  if (!is_folder && !fs::exists(path))
    throw ConfigError(rule_got_fix("tokenizer: must be a folder or file that exists", path.string()));
  const auto names = [&](const char* vocab, const char* merges) {
    return is_folder ? fs::exists(folder / vocab) && fs::exists(folder / merges) : file == vocab || file == merges;
  };
  if (is_folder && fs::exists(folder / "tokenizer.json")) return read_vocabulary(folder / "tokenizer.json");
  if (names("encoder.json", "vocab.bpe")) return read_pair(folder / "encoder.json", folder / "vocab.bpe");
  if (names("vocab.json", "merges.txt")) return read_pair(folder / "vocab.json", folder / "merges.txt");
  if (is_folder ? fs::exists(folder / "vocab.txt") : path.extension() == ".txt") {
    const fs::path vocab = is_folder ? folder / "vocab.txt" : path;
    return parse_vocab_txt(read_file(vocab, kMaxFileBytes), vocab.string(), normalization_beside(folder));
  }
  if (!is_folder && path.extension() == ".json")
    return parse_tokenizer_json(read_file(path, kMaxFileBytes), path.string());
  throw ConfigError(
      rule_got_fix("tokenizer: must be tokenizer.json, encoder.json with vocab.bpe, vocab.json with merges.txt, or "
                   "vocab.txt, or their "
                   "folder",
                   path.string()));
}

}  // namespace megatron::text
