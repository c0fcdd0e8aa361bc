#include "megatron/text/files/tekken_file.h"

#include <algorithm>

#include "megatron/base/text/printable.h"
#include "megatron/text/files/base64.h"
#include "megatron/text/files/hugging_face/json_component.h"
#include "megatron/text/files/ranks.h"

namespace megatron::text {
namespace {

constexpr std::int32_t kMaxSpecials = 65536;

/// The special tokens of files that list none, which those of version 7 and before may.
constexpr const char* kEarlySpecials[] = {"<unk>",
                                          "<s>",
                                          "</s>",
                                          "[INST]",
                                          "[/INST]",
                                          "[AVAILABLE_TOOLS]",
                                          "[/AVAILABLE_TOOLS]",
                                          "[TOOL_RESULTS]",
                                          "[/TOOL_RESULTS]",
                                          "[TOOL_CALLS]",
                                          "[IMG]",
                                          "<pad>",
                                          "[IMG_BREAK]",
                                          "[IMG_END]",
                                          "[PREFIX]",
                                          "[MIDDLE]",
                                          "[SUFFIX]",
                                          "[SYSTEM_PROMPT]",
                                          "[/SYSTEM_PROMPT]",
                                          "[TOOL_CONTENT]"};

/// `count` of them: those of the file, and <SPECIAL_n> for the ids that it does not name.
std::vector<SpecialToken> read_specials(const Component& root, const std::string& version, std::int32_t count) {
  std::vector<SpecialToken> specials;
  if (root.has("special_tokens")) {
    for (std::size_t i = 0; i < root.array_size("special_tokens"); ++i) {
      const Component token = root.at("special_tokens", i);
      token.know({"rank", "token_str", "is_control"});
      const std::int32_t rank = token.number("rank");
      if (static_cast<std::size_t>(rank) != i) token.refuse(".rank must be the token's place", concat(rank));
      specials.push_back(
          {.content = token.text("token_str"), .id = rank, .special = token.boolean("is_control", true)});
      if (specials.back().content.empty()) token.refuse(".token_str must not be empty", "\"\"");
    }
  } else {
    if (version != "v1" && version != "v2" && version != "v3" && version != "v7")
      root.refuse("special_tokens must be there from version 8 on", version);
    for (const char* name : kEarlySpecials)
      specials.push_back({.content = name, .id = static_cast<std::int32_t>(specials.size())});
  }
  if (specials.size() > static_cast<std::size_t>(count))
    root.refuse("config.default_num_special_tokens must be at least those named", concat(count));
  for (auto id = static_cast<std::int32_t>(specials.size()); id < count; ++id)
    specials.push_back({.content = concat("<SPECIAL_", id, ">"), .id = id});
  return specials;
}

std::string read_token(const Component& entry, std::size_t rank) {
  entry.know({"rank", "token_bytes", "token_str"});
  if (static_cast<std::size_t>(entry.number("rank")) != rank)
    entry.refuse(".rank must be the token's place", concat(entry.number("rank")));
  const std::string code = entry.text("token_bytes");
  std::string bytes;
  if (!from_base64(code, bytes) || bytes.empty() || bytes.size() > kMaxRankBytes)
    entry.refuse(concat(".token_bytes must be 1 to ", kMaxRankBytes, " bytes in base64"), in_quotes(code));
  if (rank < 256 && bytes != std::string(1, static_cast<char>(rank)))
    entry.refuse(".token_bytes of the first 256 must be the bytes in order", in_quotes(code));
  return bytes;
}

}  // namespace

bool is_tekken(const nlohmann::json& file) {
  return file.is_object() && file.contains("config") && file.contains("vocab");
}

Vocabulary parse_tekken(const nlohmann::json& file, const std::string& name, SourceFile source) {
  const Component root(file, name + ": ");
  root.know({"config", "vocab", "special_tokens", "version", "type", "image", "multimodal", "audio",
             "model_settings_builder"});
  const Component config = root.at("config");
  config.know({"pattern", "num_vocab_tokens", "default_vocab_size", "default_num_special_tokens", "version"});
  const std::int32_t size = config.number("default_vocab_size"), count = config.number("default_num_special_tokens");
  if (count > kMaxSpecials)
    config.refuse(concat(".default_num_special_tokens must be at most ", kMaxSpecials), concat(count));
  const std::int64_t ranks = std::int64_t{size} - count;
  if (ranks < 256 || ranks > static_cast<std::int64_t>(root.array_size("vocab")))
    config.refuse(
        concat(".default_vocab_size must be that of the special tokens and of 256 ranks or more, at most the ",
               root.array_size("vocab"), " of the file"),
        concat(size));
  std::vector<SpecialToken> specials = read_specials(root, config.text("version"), count);
  std::vector<std::string> tokens(static_cast<std::size_t>(count));
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(ranks); ++rank)
    tokens.push_back(read_token(root.at("vocab", rank), rank));

  const std::string pattern = config.text("pattern");
  if (pattern.empty()) config.refuse(".pattern must be an expression", "\"\"");
  Vocabulary vocabulary = vocabulary_of_ranks(std::move(tokens), std::move(specials), pattern, name);
  const auto begin = std::find_if(vocabulary.specials.begin(), vocabulary.specials.end(),
                                  [](const SpecialToken& token) { return token.content == "<s>"; });
  if (begin != vocabulary.specials.end()) {
    using Kind = Template::Kind;
    vocabulary.frame.single = {{Kind::Token, begin->id, 0}, {Kind::First, 0, 0}};
    vocabulary.frame.pair = vocabulary.frame.single;
    vocabulary.frame.pair.insert(vocabulary.frame.pair.end(), {{Kind::Token, begin->id, 1}, {Kind::Second, 0, 1}});
  }
  vocabulary.source = std::move(source);
  return vocabulary;
}

}  // namespace megatron::text
