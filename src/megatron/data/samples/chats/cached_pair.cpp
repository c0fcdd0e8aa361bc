#include "megatron/data/samples/chats/cached_pair.h"

#include <filesystem>

#include "megatron/base/error.h"
#include "megatron/base/files/regular_file.h"
#include "megatron/base/progress.h"
#include "megatron/data/files/indexed_dataset.h"
#include "megatron/data/files/text_reader.h"

namespace megatron::data {
namespace {

void tokenize_lines(const CachedPair& pair, const std::string& path, const std::string& prefix,
                    const EncodeLine& encode) {
  check_regular(path);
  BlockReader reader({.inputs = {path}, .format = TextFormat::Jsonl});
  IndexedDatasetWriter writer(prefix, DType::I32);
  Progress progress("tokenize " + path, "bytes", reader.total_bytes().value_or(0));
  for (TextBlock block; reader.next(block); progress.update(block.input_position))
    for (const TextBlock::Record& record : block.records) {
      std::vector<std::vector<std::int32_t>> documents;
      try {
        if (record.too_long)
          throw ConfigError(rule_got_fix(concat(pair.line, " has at most 64 MiB."), "more", pair.cut));
        documents = encode(std::string_view(block.bytes).substr(record.begin, record.size));
      } catch (const ConfigError& error) {
        throw ConfigError(concat(path, ", line ", record.line, ": ", error.what()));
      }
      for (const std::vector<std::int32_t>& tokens : documents) {
        const auto length = static_cast<std::int32_t>(tokens.size());
        writer.add_document(tokens, {&length, length > 0 ? std::size_t{1} : std::size_t{0}});
      }
    }
  writer.publish();
}

}  // namespace

std::string build_cached_pair(const CachedPair& pair, const std::string& path, const text::Tokenizer& tokenizer,
                              const std::string& template_text, const std::string& cache_folder,
                              const std::function<EncodeLine()>& make, const WaitMessage& say) {
  const std::filesystem::path file = path;
  std::error_code missing;
  const auto size = std::filesystem::file_size(file, missing);
  if (missing)
    throw ConfigError(rule_got_fix(concat(pair.lines, " must be in a readable file."), path,
                                   "name a file that is there and may be read"));
  const auto changed = std::filesystem::last_write_time(file).time_since_epoch().count();
  const auto folder = cache_folder.empty() ? file.parent_path() / "cache" / concat(pair.kind, "_indices")
                                           : std::filesystem::path(cache_folder);
  const CacheEntry entry(
      folder, pair.kind,
      concat("version: ", pair.version, "\nfile: ", std::filesystem::absolute(file).string(), "\nbytes: ", size,
             "\nchanged: ", changed, "\ntokenizer: ", tokenizer.fingerprint(), "\ntemplate: ", template_text, "\n"));
  build_once(
      entry, {concat(pair.name, ".idx"), concat(pair.name, ".bin")},
      [&] { tokenize_lines(pair, path, entry.file(pair.name), make()); }, say);
  return entry.file(pair.name);
}

}  // namespace megatron::data
