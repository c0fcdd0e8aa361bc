#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

#include <nlohmann/json_fwd.hpp>

#include "megatron/text/vocabulary.h"

namespace megatron::text {

/// parse_json() (base/text/json.h) whose fault is a ConfigError with `name`.
nlohmann::json parse_json(std::string_view text, const std::string& name);

/// `value` for an error message, cut after 60 bytes.
std::string shortened(const nlohmann::json& value);

/// Builds a Vocabulary from the spellings that files use, checking each step.
class SpellingReader {
 public:
  /// How tokens are spelled: in GPT-2's byte characters, or as they are.
  enum class Spelling : std::uint8_t { ByteLevel, Plain };

  explicit SpellingReader(std::string name, Spelling spelling = Spelling::ByteLevel)
      : name_(std::move(name)), spelling_(spelling) {}

  /// An object of spellings and ids, and the special tokens, whose spelling is their content itself. Special tokens may
  /// be listed in `vocab` too. Ids may have holes, as those of published files that lost tokens have, but must be below
  /// twice the number of tokens and 1024 more: what an id takes is memory.
  void read_tokens(const nlohmann::json& vocab, std::vector<SpecialToken> specials);

  /// The next merge, of which the right half loses `prefix`. `where` says for messages where the file has it.
  void add_merge(std::string_view left, std::string_view right, const std::string& where, std::string_view prefix = {});

  Vocabulary take() { return std::move(vocabulary_); }

  /// Id of a spelling listed in the vocabulary, or -1.
  std::int32_t id_of(std::string_view spelling) const;

 private:
  void set_token(std::int32_t id, std::string bytes);

  std::string name_;
  Spelling spelling_;
  Vocabulary vocabulary_;
  std::unordered_map<std::string, std::int32_t> ids_;
};

}  // namespace megatron::text
