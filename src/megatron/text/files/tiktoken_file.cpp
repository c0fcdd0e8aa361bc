#include "megatron/text/files/tiktoken_file.h"

#include <algorithm>
#include <charconv>

#include "megatron/base/error.h"
#include "megatron/base/text/printable.h"
#include "megatron/text/characters/byte_level.h"
#include "megatron/text/files/base64.h"
#include "megatron/text/files/ranks.h"

namespace megatron::text {
namespace {

constexpr const char* kCl100k = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3})"
                                R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kO200k =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

using SpecialTokens = std::vector<SpecialToken>;

/// Adds `names`, then `reserved` names that `name(number)` gives, at the ids that follow.
void add_specials(SpecialTokens& specials, std::int32_t& next, std::initializer_list<const char*> names) {
  for (const char* name : names) specials.push_back({.content = name, .id = next++});
}
void add_reserved(SpecialTokens& specials, std::int32_t& next, std::string_view prefix, int from, int count) {
  for (int i = from; i < from + count; ++i)
    specials.push_back({.content = concat("<|", prefix, "reserved_special_token_", i, "|>"), .id = next++});
}

SpecialTokens llama3() {
  SpecialTokens specials;
  std::int32_t next = 128000;
  add_specials(specials, next, {"<|begin_of_text|>", "<|end_of_text|>"});
  add_reserved(specials, next, "", 0, 2);
  add_specials(specials, next,
               {"<|finetune_right_pad_id|>", "<|step_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>",
                "<|eot_id|>", "<|python_tag|>", "<|image|>"});
  add_reserved(specials, next, "", 2, 244);
  return specials;
}

SpecialTokens llama4() {
  SpecialTokens specials;
  std::int32_t next = 200000;
  add_specials(specials, next,
               {"<|begin_of_text|>", "<|end_of_text|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>",
                "<|header_start|>", "<|header_end|>", "<|eom|>", "<|eot|>", "<|step|>"});
  add_reserved(specials, next, "text_post_train_", 0, 6);
  add_specials(specials, next, {"<|python_start|>", "<|python_end|>", "<|finetune_right_pad|>"});
  add_reserved(specials, next, "text_post_train_", 8, 61);
  add_specials(specials, next, {"<|image_start|>", "<|image_end|>"});
  add_reserved(specials, next, "vision_", 0, 2);
  add_specials(specials, next, {"<|tile_x_separator|>", "<|tile_y_separator|>"});
  add_reserved(specials, next, "vision_", 2, 4);
  add_specials(specials, next, {"<|image|>"});
  add_reserved(specials, next, "vision_", 6, 1);
  add_specials(specials, next, {"<|patch|>"});
  add_reserved(specials, next, "vision_", 7, 1041);
  add_reserved(specials, next, "reasoning_", 0, 8);
  add_specials(specials, next, {"<|reasoning_thinking_start|>", "<|reasoning_thinking_end|>"});
  add_reserved(specials, next, "", 0, 2048 - static_cast<int>(specials.size()));
  return specials;
}

SpecialTokens qwen() {
  SpecialTokens specials;
  std::int32_t next = 151643;
  add_specials(specials, next, {"<|endoftext|>", "<|im_start|>", "<|im_end|>"});
  for (int i = 0; i < 205; ++i) specials.push_back({.content = concat("<|extra_", i, "|>"), .id = next++});
  return specials;
}

/// What the number of ranks says; false for a number that nobody published. No expression: GPT-2's.
bool known(std::size_t ranks, std::string& expression, SpecialTokens& specials) {
  switch (ranks) {
    case 50256:
    case 50280:
      specials = {{"<|endoftext|>", 50256}};
      return true;
    case 100256:
      expression = kCl100k;
      specials = {{"<|endoftext|>", 100257},
                  {"<|fim_prefix|>", 100258},
                  {"<|fim_middle|>", 100259},
                  {"<|fim_suffix|>", 100260},
                  {"<|endofprompt|>", 100276}};
      return true;
    case 128000:
      expression = kCl100k;
      specials = llama3();
      return true;
    case 151643:
      expression = kQwen;
      specials = qwen();
      return true;
    case 199998:
      expression = kO200k;
      specials = {{"<|endoftext|>", 199999}, {"<|endofprompt|>", 200018}};
      return true;
    case 200000:
      expression = kO200k;
      specials = llama4();
      return true;
    default:
      return false;
  }
}

bool parse_line(std::string_view line, std::string& token, std::uint32_t& rank) {
  const std::size_t blank = line.find(' ');
  if (blank == std::string_view::npos || !from_base64(line.substr(0, blank), token) || token.empty()) return false;
  const char* const end = line.data() + line.size();
  const auto [after, error] = std::from_chars(line.data() + blank + 1, end, rank);
  return error == std::errc() && after == end;
}

}  // namespace

bool looks_like_tiktoken(std::string_view text) {
  std::string token;
  std::uint32_t rank = 0;
  std::string_view line = text.substr(0, std::min(text.find('\n'), text.size()));
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line.size() < 2 * kMaxRankBytes && parse_line(line, token, rank);
}

Vocabulary parse_tiktoken(std::string_view text, const std::string& name, const std::string& file_name) {
  std::vector<std::string> tokens;
  std::size_t ranks = 0;
  const auto lines = static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n')) + 1;
  std::string token;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = text.substr(at, end - at);
    if (line.ends_with('\r')) line.remove_suffix(1);
    const std::size_t begin = std::exchange(at, end + 1);
    if (line.empty()) continue;
    const auto refuse = [&](const std::string& rule) {
      throw ConfigError(rule_got_fix(concat(name, " byte ", begin, ": ", rule), in_quotes(line)));
    };
    std::uint32_t rank = 0;
    if (!parse_line(line, token, rank)) refuse("a line must be a token in base64 and its rank");
    if (token.size() > kMaxRankBytes) refuse(concat("a token must have at most ", kMaxRankBytes, " bytes"));
    if (rank > lines + 1024) refuse("a rank must be about the number of its line");
    if (tokens.size() <= rank) tokens.resize(rank + 1);
    if (!tokens[rank].empty()) refuse("no rank may come twice");
    tokens[rank] = token;
    ++ranks;
  }
  std::string expression;
  SpecialTokens specials;
  if (!known(ranks, expression, specials))
    throw ConfigError(rule_got_fix(concat(name,
                                          ": a file of ranks must be r50k_base, p50k_base, cl100k_base, o200k_base, "
                                          "Llama 3's, Llama 4's or Qwen's, which are known by the number of ranks"),
                                   concat(ranks, " ranks")));
  Vocabulary vocabulary = vocabulary_of_ranks(std::move(tokens), std::move(specials), expression, name);
  vocabulary.source = SourceFile{file_name, std::string(text)};
  return vocabulary;
}

}  // namespace megatron::text
