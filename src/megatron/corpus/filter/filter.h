#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "megatron/corpus/threads.h"
#include "megatron/data/files/text_reader.h"
#include "megatron/text/tokenizer.h"

namespace megatron::corpus {

/// Why a document goes; of several reasons the first in this order.
enum class Reason : std::uint8_t { BadLine, Url, Short, Language };
inline constexpr std::size_t kReasons = 4;
/// "bad_line", "url", "short", "language".
const char* reason_name(Reason reason);

struct FilterOptions {
  data::TextReaderOptions text = {};
  std::string output = "";        ///< the documents that stay, byte for byte, in their order; empty: only counted
  std::string rejected = "";      ///< those that go, as JSON lines with "rejected": reason; empty: not written
  std::int64_t min_tokens = 128;  ///< shorter documents go (Shoeybi et al. 2019, section 4.1)
  const text::Tokenizer* tokenizer = nullptr;  ///< whose tokens are counted; null: words are (words.h)
  std::vector<std::string> languages = {};     ///< see LanguageFilter; none: all
  std::string url_key = "url";                 ///< member of a JSON line; a document without one has no URL
  std::vector<std::string> block_domains = {}, block_urls = {};  ///< files, see Blocklist
  bool skip_bad_lines =
      false;  ///< a line that cannot be read, or that the tokenizer refuses, is a reason to drop it instead of an error
  int workers = 1;
};

struct FilterResult {
  std::int64_t documents = 0, kept = 0;
  std::array<std::int64_t, kReasons> rejected{};  ///< by reason
  std::int64_t text_bytes = 0, kept_text_bytes = 0;
  std::int64_t output_bytes = 0;
  std::int64_t without_url = 0;  ///< with blocklists: documents that none can block, for they have no URL
};

/// One pass over the inputs, which may be standard input. The result does not depend on `workers`. A rejected JSON line
/// is written as it stands with the reason as its first member, another text as {"rejected": reason, "text": text}, a
/// line that is too long as its place alone. Nothing is under the final names before all is written.
FilterResult filter(const FilterOptions& options, const OnProgress& progress = {});

}  // namespace megatron::corpus
