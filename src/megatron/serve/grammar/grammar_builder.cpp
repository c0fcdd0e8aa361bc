#include "megatron/serve/grammar/grammar_builder.h"

#include "megatron/serve/api/api_error.h"

namespace megatron::serve {
namespace {

using Sequence = Grammar::Sequence;

constexpr std::size_t kMaxSymbols = 200'000, kMaxSteps = 2'000'000;  // half a second

}  // namespace

void refuse_schema(const std::string& what) { throw ApiError(400, what, "response_format", "invalid_json_schema"); }

ByteSet bytes_from(int from, int to) {
  ByteSet set;
  for (int byte = from; byte <= to; ++byte) set.set(static_cast<std::size_t>(byte));
  return set;
}

ByteSet any_byte_of(std::string_view bytes) {
  ByteSet set;
  for (const char c : bytes) set.set(static_cast<unsigned char>(c));
  return set;
}

Sequence literal(std::string_view text) {
  Sequence sequence;
  for (const char c : text) sequence.push_back(Grammar::byte(c));
  return sequence;
}

Sequence joined(std::initializer_list<Sequence> parts) {
  Sequence all;
  for (const Sequence& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

void GrammarBuilder::need_room(std::size_t symbols) const {
  if (grammar_.size() + symbols > kMaxSymbols) refuse_schema("the schema is too large");
}

void GrammarBuilder::spend(std::size_t steps) {
  if ((spent_ += steps) > kMaxSteps) refuse_schema("the schema takes too long: its patterns branch too much");
}

void GrammarBuilder::add(std::int32_t rule, const Sequence& alternative) {
  need_room(alternative.size() + 1);
  grammar_.add(rule, alternative);
}

std::int32_t GrammarBuilder::rule_with(const std::vector<Sequence>& alternatives) {
  const std::int32_t number = grammar_.add_rule();
  for (const Sequence& alternative : alternatives) add(number, alternative);
  return number;
}

std::int32_t GrammarBuilder::repeated(const Sequence& one, std::int64_t least, std::int64_t most) {
  std::int32_t rest = rule_with({{}});
  if (most < 0) add(rest, joined({one, {Grammar::rule(rest)}}));
  for (std::int64_t i = least; i < most; ++i) rest = rule_with({{}, joined({one, {Grammar::rule(rest)}})});
  for (std::int64_t i = 0; i < least; ++i) rest = rule_with({joined({one, {Grammar::rule(rest)}})});
  return rest;
}

}  // namespace megatron::serve
