#include "megatron/text/files/tokenizer_files.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/base/files/gguf.h"
#include "megatron/text/files/gguf_tokenizer.h"
#include "megatron/text/files/hugging_face/tokenizer_config.h"
#include "megatron/text/files/object_file.h"
#include "megatron/text/files/sentencepiece_file.h"
#include "megatron/text/files/sentinels.h"
#include "megatron/text/files/tiktoken_file.h"
#include "megatron/text/files/token_spellings.h"
#include "megatron/text/files/tokenizer_types.h"
#include "megatron/text/models/word_level.h"

namespace megatron::text {
namespace {

namespace fs = std::filesystem;

Vocabulary read_pair(const fs::path& vocab_file, const fs::path& merges) {
  const fs::path folder = vocab_file.parent_path();
  const VocabularyDocument vocab = read_vocabulary_document(read_file(vocab_file, kMaxFileBytes), vocab_file.string());
  Vocabulary vocabulary = parse_vocab_and_merges(vocab, vocab_file.string(), added_tokens_beside(folder, vocab),
                                                 read_file(merges, kMaxFileBytes), merges.string());
  follow_config(folder, vocabulary);
  return vocabulary;
}

/// What tokenizer_config.json beside a vocab.txt says of normalization; of what it does not say, what the type asked
/// for does, and lower case where that does not say either.
BertNormalization normalization_beside(const fs::path& folder, std::string_view type) {
  const ObjectFile file(folder, "tokenizer_config.json");
  const Component& config = file.root;
  BertNormalization bert;
  bert.lower_case = bert.strip_accents = type != "BertWordPieceCase";
  if (!file.there) return bert;
  bert.lower_case = config.boolean("do_lower_case", bert.lower_case);
  bert.space_chinese = config.boolean("tokenize_chinese_chars", true);
  bert.strip_accents = config.boolean("strip_accents", bert.lower_case);
  return bert;
}

}  // namespace

Vocabulary parse_vocab_and_merges(const VocabularyDocument& vocab, const std::string& vocab_name,
                                  std::vector<SpecialToken> specials, std::string_view merges,
                                  const std::string& merges_name) {
  SpellingReader reader(vocab_name);
  reader.read_tokens(vocab.tokens, std::move(specials));

  for (std::size_t at = 0; at < merges.size();) {
    const std::size_t end = std::min(merges.find('\n', at), merges.size());
    std::string_view line = merges.substr(at, end - at);
    if (line.ends_with('\r')) line.remove_suffix(1);
    const auto where = [&merges_name, at] { return concat(merges_name, " byte ", at); };
    const bool is_header = at == 0 && line.starts_with("#version");
    at = end + 1;
    if (is_header || line.empty()) continue;
    const std::size_t space = line.find(' ');
    if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos)
      throw ConfigError(rule_got_fix(concat(where(), ": a merge must be two tokens with one space between"),
                                     shortened(nlohmann::json(line))));
    reader.add_merge(line.substr(0, space), line.substr(space + 1), where);
  }
  return reader.take();
}

namespace {

/// The only file of a folder that ends in `extension`; empty where there are none or several.
fs::path only_file(const fs::path& folder, const char* extension) {
  fs::path found;
  if (!fs::is_directory(folder)) return found;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != extension || !entry.is_regular_file()) continue;
    if (!found.empty()) return {};
    found = entry.path();
  }
  return found;
}

fs::path file_of(const fs::path& path) {
  if (!fs::is_directory(path)) return path;
  if (const auto file = tokenizer_file(path)) return *file;
  throw ConfigError(rule_got_fix(
      "tokenizer: a folder must hold tokenizer.json, tekken.json, encoder.json with vocab.bpe, vocab.json with "
      "merges.txt, vocab.txt, tokenizer.model, spiece.model, or one *.tiktoken or *.model",
      path.string()));
}

Vocabulary read_one_file(const fs::path& path, std::string_view type) {
  const fs::path folder = path.parent_path();
  const std::string file = path.filename().string();
  if (file == "encoder.json" || file == "vocab.bpe") return read_pair(folder / "encoder.json", folder / "vocab.bpe");
  if (file == "vocab.json" || file == "merges.txt") return read_pair(folder / "vocab.json", folder / "merges.txt");
  const std::string bytes = read_file(path, kMaxFileBytes);
  if (path.extension() == ".txt" || (path.extension() != ".json" && type.starts_with("BertWordPiece"))) {
    Vocabulary vocabulary = parse_vocab_txt(bytes, path.string(), normalization_beside(folder, type));
    check_added_tokens(folder, vocabulary);
    return vocabulary;
  }
  if (path.extension() == ".json") {
    Vocabulary vocabulary = parse_tokenizer_json(bytes, path.string());
    if (file == "tokenizer.json") check_config(folder, vocabulary);
    return vocabulary;
  }
  if (looks_like_tiktoken(bytes)) return parse_tiktoken(bytes, path.string(), file);
  return parse_sentencepiece_model(bytes, path.string(), file);
}

Vocabulary read_null(const std::string& number) {
  std::int32_t size = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), size);
  if (error != std::errc() || end != number.data() + number.size())
    throw ConfigError(
        rule_got_fix("tokenizer: for a NullTokenizer the path must be how many numbers there are", number));
  return null_vocabulary(size);
}

}  // namespace

std::optional<fs::path> tokenizer_file(const fs::path& folder) {
  const auto has = [&](const char* name) { return fs::is_regular_file(folder / name); };
  for (const char* name : {"tokenizer.json", "tekken.json"})
    if (has(name)) return folder / name;
  if (has("encoder.json") && has("vocab.bpe")) return folder / "encoder.json";
  if (has("vocab.json") && has("merges.txt")) return folder / "vocab.json";
  for (const char* name : {"vocab.txt", "tokenizer.model", "spiece.model"})
    if (has(name)) return folder / name;
  for (const char* extension : {".tiktoken", ".model"})
    if (fs::path file = only_file(folder, extension); !file.empty()) return file;
  return std::nullopt;
}

Vocabulary read_vocabulary(const fs::path& path, std::string_view type) {
  if (type == "NullTokenizer") return read_null(path.string());
  const std::string name = path.string();
  if (const std::size_t comma = name.find(','); comma != std::string::npos && !fs::exists(path)) {
    Vocabulary vocabulary = read_pair(name.substr(0, comma), name.substr(comma + 1));
    apply_type(type, name, vocabulary);
    return vocabulary;
  }
  if (!fs::exists(path))
    throw ConfigError(rule_got_fix("tokenizer: must be a folder or file that exists", path.string()));
  const fs::path file = file_of(path);
  if (is_gguf(file)) {  // which says all of its tokenizer itself
    const MappedFile mapped(file);
    Vocabulary vocabulary = read_gguf_tokenizer(Gguf(mapped.text(), file.string()));
    apply_type(type, file.string(), vocabulary);
    return vocabulary;
  }
  Vocabulary vocabulary = read_one_file(file, type);
  add_sentinels(file.parent_path(), vocabulary);
  add_pieces_beside(file.parent_path(), vocabulary);
  if (type != "GPT2BPETokenizer" && type != "TikTokenizer")  // whose end no file names
    if (const auto end = end_token_beside(file.parent_path(), vocabulary)) vocabulary.end_of_text = end;
  apply_type(type, file.string(), vocabulary);
  return vocabulary;
}

}  // namespace megatron::text
