#include "megatron/text/files/ranks.h"

#include <unordered_map>

#include "megatron/base/error.h"

namespace megatron::text {
namespace {

/// Every way to join two tokens to a third, the tokens in the order of their ranks. Throws ConfigError where there are
/// more than any published vocabulary has by far: a file can have as many as the square of its tokens.
void add_merges(Vocabulary& vocabulary, const std::string& name) {
  constexpr std::size_t kMaxJoins = 64;                     // a token; published vocabularies have 3 to 6
  constexpr std::size_t kMaxHashed = std::size_t{1} << 31;  // bytes, 100 times those of 200,000 tokens
  const auto& tokens = vocabulary.tokens;
  std::unordered_map<std::string_view, std::int32_t> ids;
  ids.reserve(tokens.size());
  for (std::size_t id = 0; id < tokens.size(); ++id)
    if (!tokens[id].empty()) ids.emplace(tokens[id], static_cast<std::int32_t>(id));
  const auto check = [&](const char* rule, std::size_t got, std::size_t most) {
    if (got > most) throw ConfigError(rule_got_fix(concat(name, ": ", rule, " at most ", most), "more"));
  };
  std::size_t hashed = 0;
  for (const std::string_view token : tokens) {
    hashed += token.size() * token.size();
    check("the squares of the tokens' bytes must sum up to", hashed, kMaxHashed);
    check("the ways to join two tokens to a third must be", vocabulary.merges.size(), kMaxJoins * tokens.size());
    for (std::size_t cut = 1; cut < token.size(); ++cut) {
      const auto left = ids.find(token.substr(0, cut));
      if (left == ids.end()) continue;
      const auto right = ids.find(token.substr(cut));
      if (right != ids.end()) vocabulary.merges.emplace_back(left->second, right->second);
    }
  }
}

}  // namespace

Vocabulary vocabulary_of_ranks(std::vector<std::string> tokens, std::vector<SpecialToken> specials,
                               const std::string& expression, const std::string& name) {
  Vocabulary vocabulary;
  vocabulary.tokens = std::move(tokens);
  add_merges(vocabulary, name);
  for (const SpecialToken& special : specials) {
    const auto id = static_cast<std::size_t>(special.id);
    if (vocabulary.tokens.size() <= id) vocabulary.tokens.resize(id + 1);
    if (!vocabulary.tokens[id].empty())
      throw ConfigError(
          rule_got_fix(concat(name, ": no rank may be that of a special token"), concat(id, " ", special.content)));
    vocabulary.tokens[id] = special.content;
  }
  vocabulary.specials = std::move(specials);
  vocabulary.equal_ranks = true;
  vocabulary.ignore_merges = true;
  if (expression.empty()) return vocabulary;
  vocabulary.pipeline.emplace();
  vocabulary.pipeline->pre_tokenizers = {pretokenizer::Split{.pattern = {expression, true}},
                                         pretokenizer::ByteLevel{.add_prefix_space = false, .use_regex = false}};
  vocabulary.pipeline->decoders = {decoder::ByteLevel()};
  return vocabulary;
}

}  // namespace megatron::text
