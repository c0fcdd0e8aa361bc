#pragma once
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>

#include "megatron/text/characters/token_index.h"
#include "megatron/text/vocabulary.h"

namespace megatron::text {

/// parse_json() (base/text/json.h) whose fault is a ConfigError with `name`.
nlohmann::json parse_json(std::string_view text, const std::string& name);

/// `value` for an error message, cut after 60 bytes.
std::string shortened(const nlohmann::json& value);

/// A token as a file has it.
struct SpelledToken {
  std::string_view spelling;
  std::int32_t id = 0;
};

/// An object of spellings and ids, which must outlive them. Throws ConfigError, naming `name`, for anything else.
std::vector<SpelledToken> spelled_tokens(const nlohmann::json& vocab, const std::string& name);

/// Builds a Vocabulary from the spellings that files use, checking each step.
class SpellingReader {
 public:
  /// How tokens are spelled: in GPT-2's byte characters, or as they are.
  enum class Spelling : std::uint8_t { ByteLevel, Plain };

  explicit SpellingReader(std::string name, Spelling spelling = Spelling::ByteLevel)
      : name_(std::move(name)), spelling_(spelling) {}

  /// An object of spellings and ids, and the special tokens, whose spelling is their content itself. Special tokens may
  /// be listed in `vocab` too. Ids may have holes, as those of published files that lost tokens have, but must be below
  /// twice the number of tokens and 1024 more: what an id takes is memory. `vocab` must outlive the reader.
  void read_tokens(const nlohmann::json& vocab, std::vector<SpecialToken> specials);
  /// As above, from a list. The texts that its spellings view must outlive the reader.
  void read_tokens(std::span<const SpelledToken> vocab, std::vector<SpecialToken> specials);

  void reserve_merges(std::size_t merges) {
    vocabulary_.merges.reserve(merges);
    vocabulary_.made.reserve(merges);
  }
  /// The next merge, of which the right half loses `prefix`. `where` says for messages where the file has it.
  void add_merge(std::string_view left, std::string_view right, const std::function<std::string()>& where,
                 std::string_view prefix = {});

  Vocabulary take() { return std::move(vocabulary_); }

  /// Id of a spelling listed in the vocabulary, or -1.
  std::int32_t id_of(std::string_view spelling) const;

 private:
  void set_token(std::int32_t id, std::string bytes);

  std::string name_;
  Spelling spelling_;
  Vocabulary vocabulary_;
  TokenIndex ids_;
  std::string joined_;  // of add_merge()
};

}  // namespace megatron::text
