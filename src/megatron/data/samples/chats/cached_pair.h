#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/data/index/index_cache.h"
#include "megatron/text/tokenizer.h"

namespace megatron::data {

/// What a file of JSON lines becomes in the cache: a .bin/.idx pair of documents.
struct CachedPair {
  const char *kind, *name;         ///< "SFTDataset", "chats": of the cache's folder, and of the pair
  const char *lines, *line, *cut;  ///< "conversations", "a conversation", "cut it into several conversations"
  int version;                     ///< raised when the same file begins to mean other tokens
};

/// The documents of one line, which simdjson::SIMDJSON_PADDING bytes that may be read follow. Throws ConfigError
/// without the line's place.
using EncodeLine = std::function<std::vector<std::vector<std::int32_t>>(std::string_view line)>;

/// Tokenizes the lines of `path` into the cache unless that is done, and returns the prefix of the pair.
/// `cache_folder`: empty for cache/KIND_indices beside the file. The names depend on the file's path, size and time of
/// change, on the tokenizer and on `template_text`. `make`: called where the pair is built. Throws ConfigError naming
/// file and line.
std::string build_cached_pair(const CachedPair& pair, const std::string& path, const text::Tokenizer& tokenizer,
                              const std::string& template_text, const std::string& cache_folder,
                              const std::function<EncodeLine()>& make, const WaitMessage& say);

}  // namespace megatron::data
