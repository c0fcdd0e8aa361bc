#include "megatron/text/files/sentinels.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "megatron/base/error.h"
#include "megatron/base/file.h"
#include "megatron/text/files/json_component.h"

namespace megatron::text {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxFileBytes = std::uint64_t{1} << 28;
constexpr std::int32_t kUsualSentinels = 100, kMostSentinels = 100000;

/// The value of `key` where it is a text; else an empty one.
std::string text_of(const nlohmann::json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

std::int32_t sentinels_beside(const fs::path& folder) {
  const fs::path path = folder / "tokenizer_config.json", model = folder / "config.json";
  if (!fs::exists(path)) {
    if (!fs::exists(model)) return 0;
    return text_of(parse_json(read_file(model, kMaxFileBytes), model.string()), "model_type") == "t5" ? kUsualSentinels
                                                                                                      : 0;
  }
  const nlohmann::json file = parse_json(read_file(path, kMaxFileBytes), path.string());
  const Component config(file, path.string() + ": ");
  if (!config.has("extra_ids"))
    return text_of(file, "tokenizer_class").starts_with("T5Tokenizer") ? kUsualSentinels : 0;
  const std::int32_t count = config.number("extra_ids");
  if (count > kMostSentinels) config.refuse(concat(".extra_ids must be at most ", kMostSentinels), concat(count));
  return count;
}

}  // namespace

void add_sentinels(const fs::path& folder, Vocabulary& vocabulary) {
  if (!vocabulary.sentence_piece) return;
  const auto has = [&](const char* token) { return std::ranges::count(vocabulary.tokens, token) > 0; };
  if (has("<extra_id_0>") || has("\u2581<extra_id_0>")) return;  // the latter is how an mT5's model spells it
  for (std::int32_t number = sentinels_beside(folder) - 1; number >= 0; --number) {
    const auto id = static_cast<std::int32_t>(vocabulary.tokens.size());
    vocabulary.tokens.push_back(concat("<extra_id_", number, ">"));
    vocabulary.specials.push_back({.content = vocabulary.tokens.back(), .id = id});
    vocabulary.sentence_piece->types.push_back(SentencePiece::Type::Control);
    vocabulary.sentence_piece->scores.push_back(0);
  }
}

std::size_t count_sentinels(const Vocabulary& vocabulary) {
  if (!vocabulary.sentence_piece) return 0;
  return static_cast<std::size_t>(std::ranges::count_if(
      vocabulary.specials, [](const SpecialToken& token) { return token.content.starts_with("<extra_id_"); }));
}

}  // namespace megatron::text
