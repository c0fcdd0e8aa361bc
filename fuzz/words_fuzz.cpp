#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/corpus/dedup/shingle_sets.h"
#include "megatron/corpus/filter/blocklist.h"
#include "megatron/corpus/filter/language.h"
#include "megatron/corpus/overlap/cut.h"
#include "megatron/corpus/records.h"
#include "megatron/corpus/words.h"

// Any bytes as a text, as a line of JSON and as a URL. What has to hold of every result ends the program where it does
// not.
namespace {

void check(bool holds) {
  if (!holds) std::abort();
}

void scan_words(std::string_view text, std::size_t radius) {
  using namespace megatron::corpus;
  WordScanner scanner;
  std::vector<TextSpan> spans;
  std::size_t before = 0;
  scanner.scan(text, [&](const Word& word) {
    check(word.begin >= before && word.begin < word.end && word.end <= text.size() && !word.folded.empty());
    before = word.end;
    if (word.hash % 8 == 0) spans.push_back({word.begin, word.end});
  });
  std::size_t end = 0;
  for (const TextSpan& piece : cut_out(text, spans, {.radius = radius, .min_characters = radius / 2})) {
    check(piece.begin >= end && piece.begin < piece.end && piece.end <= text.size());
    end = piece.end;
  }
}

void read_as_json(std::string_view line) {
  using namespace megatron::corpus;
  if (const auto member = find_member(line, "text")) {
    check(member->value.data() >= line.data() &&
          member->value.data() + member->value.size() <= line.data() + line.size());
    string_value(member->value);
  }
  string_value(line);
  check(string_value(json_string(line)).has_value());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace megatron::corpus;
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  scan_words(text, data[0] & 15);
  Shingler shingler({.characters = (data[0] & 16) != 0, .size = 1 + (data[0] >> 5)});
  auto set = shingler.shingles(text);
  make_set(set);
  check(set.empty() || jaccard(set, set) == 1);
  read_as_json(text);
  url_parts(text);
  const CharacterStatistics statistics = character_statistics(text);
  check(statistics.english_runs <= statistics.runs);
  return 0;
}
