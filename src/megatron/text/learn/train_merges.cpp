#include "megatron/text/learn/train_merges.h"

#include <limits>
#include <queue>
#include <set>
#include <string_view>
#include <unordered_map>

#include "megatron/base/error.h"
#include "megatron/base/text/printable.h"
#include "megatron/text/characters/byte_level.h"
#include "megatron/text/characters/unicode_classes.h"

namespace megatron::text {
namespace {

using Id = std::int32_t;
using Pair = std::uint64_t;  // left << 32 | right: ordered as the pairs of ids are

Pair pair_of(Id left, Id right) { return static_cast<Pair>(left) << 32 | static_cast<std::uint32_t>(right); }

/// Frequencies of all pairs ever seen, by open addressing; entries stay at the end of a dense array.
class PairTable {
 public:
  struct Entry {
    Pair pair;
    std::int64_t count = 0;
    std::uint32_t round = 0;  // of the merge that `places` gathers for
    std::uint32_t places = 0;
  };

  PairTable() : slots_(std::size_t{1} << 16, kEmpty), shift_(64 - 16) {}

  /// The reference holds until the next call.
  Entry& operator[](Pair pair) {
    for (std::size_t slot = slot_of(pair);; slot = (slot + 1) & (slots_.size() - 1)) {
      if (slots_[slot] == kEmpty) {
        slots_[slot] = static_cast<std::uint32_t>(entries_.size());
        entries_.push_back({.pair = pair});
        if (entries_.size() * 2 > slots_.size()) grow();
        return entries_.back();
      }
      if (entries_[slots_[slot]].pair == pair) return entries_[slots_[slot]];
    }
  }

 private:
  static constexpr std::uint32_t kEmpty = ~std::uint32_t{0};
  std::size_t slot_of(Pair pair) const {
    const std::uint64_t h = (pair ^ pair >> 29) * 0x9E3779B97F4A7C15u;
    return h >> shift_;
  }
  void grow() {
    --shift_;
    slots_.assign(slots_.size() * 2, kEmpty);
    for (std::uint32_t i = 0; i < entries_.size(); ++i) {
      std::size_t slot = slot_of(entries_[i].pair);
      while (slots_[slot] != kEmpty) slot = (slot + 1) & (slots_.size() - 1);
      slots_[slot] = i;
    }
  }

  std::vector<std::uint32_t> slots_;
  std::vector<Entry> entries_;
  int shift_;
};

/// A pair that waits to be merged: how often it occurred when it was put here, and the words that held it then.
struct Candidate {
  std::int64_t count;
  Pair pair;
  std::uint32_t places;
  bool operator<(const Candidate& other) const {
    return count != other.count ? count < other.count : pair > other.pair;
  }
};

class Trainer {
 public:
  Trainer(std::vector<std::string> tokens, TrainWords words, const std::string& prefix)
      : prefix_(prefix), tokens_(std::move(tokens)), words_(std::move(words)) {
    for (std::size_t id = 0; id < tokens_.size(); ++id) ids_.emplace(tokens_[id], static_cast<Id>(id));
    count_pairs();
  }

  LearnedMerges run(const TrainOptions& options, const TrainProgress& progress);

 private:
  /// Two ways to one string share its token.
  Id join(Id left, Id right) {
    std::string_view rest = tokens_[static_cast<std::size_t>(right)];
    if (rest.starts_with(prefix_)) rest.remove_prefix(prefix_.size());
    std::string joined = tokens_[static_cast<std::size_t>(left)];
    joined += rest;
    const auto [found, is_new] = ids_.emplace(joined, static_cast<Id>(tokens_.size()));
    if (is_new) tokens_.push_back(std::move(joined));
    return found->second;
  }
  void count_pairs();
  void change(Pair pair, std::int64_t by, std::uint32_t word);
  void queue_changed();
  void merge_in_word(std::uint32_t word, Id left, Id right, Id merged);

  const std::string& prefix_;
  std::vector<std::string> tokens_;
  std::unordered_map<std::string, Id> ids_;
  TrainWords words_;                 // each shortened in place by merges
  std::vector<std::size_t> begins_;  // of the words, in words_.symbols

  PairTable pairs_;
  std::uint32_t round_ = 1;
  std::vector<Pair> changed_;  // pairs that became more frequent in this round
  std::vector<std::vector<std::uint32_t>> places_;
  std::priority_queue<Candidate> queue_;
};

void Trainer::change(Pair pair, std::int64_t by, std::uint32_t word) {
  PairTable::Entry& entry = pairs_[pair];
  entry.count += by;
  if (by < 0) return;
  if (entry.round != round_) {
    entry.round = round_;
    entry.places = static_cast<std::uint32_t>(places_.size());
    places_.emplace_back();
    changed_.push_back(pair);
  }
  std::vector<std::uint32_t>& places = places_[entry.places];
  if (places.empty() || places.back() != word) places.push_back(word);
}

void Trainer::queue_changed() {
  for (const Pair pair : changed_) {
    const PairTable::Entry& entry = pairs_[pair];
    if (entry.count > 0) queue_.push({entry.count, pair, entry.places});
  }
  changed_.clear();
  ++round_;
}

void Trainer::count_pairs() {
  std::size_t begin = 0;
  for (std::uint32_t word = 0; word < words_.lengths.size(); ++word) {
    begins_.push_back(begin);
    const Id* symbols = words_.symbols.data() + begin;
    for (std::uint32_t i = 1; i < words_.lengths[word]; ++i)
      change(pair_of(symbols[i - 1], symbols[i]), words_.counts[word], word);
    begin += words_.lengths[word];
  }
  queue_changed();
}

/// Replaces each (left, right), from the left, and tells the neighbours' pairs.
void Trainer::merge_in_word(std::uint32_t word, Id left, Id right, Id merged) {
  Id* symbols = words_.symbols.data() + begins_[word];
  const std::uint32_t length = words_.lengths[word];
  const std::int64_t count = words_.counts[word];
  std::uint32_t kept = 0;
  for (std::uint32_t i = 0; i < length; ++i) {
    if (symbols[i] != left || i + 1 == length || symbols[i + 1] != right) {
      symbols[kept++] = symbols[i];
      continue;
    }
    if (kept > 0) {
      change(pair_of(symbols[kept - 1], left), -count, word);
      change(pair_of(symbols[kept - 1], merged), count, word);
    }
    if (i + 2 < length) {
      change(pair_of(right, symbols[i + 2]), -count, word);
      change(pair_of(merged, symbols[i + 2]), count, word);
    }
    symbols[kept++] = merged;
    ++i;
  }
  words_.lengths[word] = kept;
}

LearnedMerges Trainer::run(const TrainOptions& options, const TrainProgress& progress) {
  std::vector<std::pair<Id, Id>> merges;
  std::unordered_map<Pair, std::size_t> last_merge;  // index in merges
  while (static_cast<std::int64_t>(tokens_.size()) < options.vocab_size && !queue_.empty()) {
    Candidate top = queue_.top();
    queue_.pop();
    const std::int64_t count = pairs_[top.pair].count;
    if (top.count != count) {
      top.count = count;
      if (count > 0) queue_.push(top);
      continue;
    }
    if (count < options.min_frequency) break;
    const auto left = static_cast<Id>(top.pair >> 32), right = static_cast<Id>(top.pair & 0xFFFFFFFFu);
    const Id merged = join(left, right);
    last_merge[top.pair] = merges.size();
    merges.emplace_back(left, right);
    const std::vector<std::uint32_t> places = std::move(places_[top.places]);
    places_[top.places] = {};
    for (const std::uint32_t word : places) merge_in_word(word, left, right, merged);
    queue_changed();
    if (progress && tokens_.size() % 128 == 0) progress(static_cast<std::int64_t>(tokens_.size()));
  }
  LearnedMerges learned{.tokens = std::move(tokens_), .merges = {}};
  // A pair that came back after its merge was merged again; its last place in the order holds.
  for (std::size_t i = 0; i < merges.size(); ++i)
    if (last_merge[pair_of(merges[i].first, merges[i].second)] == i) learned.merges.push_back(merges[i]);
  return learned;
}

}  // namespace

void TrainOptions::check(std::int64_t alphabet) const {
  const auto needed = static_cast<std::int64_t>(specials.size()) + alphabet;
  if (vocab_size < needed || vocab_size > std::numeric_limits<Id>::max())
    throw ConfigError(rule_got_fix(
        concat("vocab_size must hold an alphabet of ", alphabet, " and ", specials.size(),
               " special tokens, and fit 31 bits."),
        concat("vocab_size ", vocab_size),
        vocab_size < needed ? concat("--vocab-size ", needed, " or more") : "--vocab-size 32000, or some such number"));
  if (min_frequency < 1)
    throw ConfigError(
        rule_got_fix("min_frequency must be 1 or more.", concat(min_frequency), "--min-frequency 2 (the default)"));
  std::set<std::string_view> seen;
  for (const std::string& content : specials) {
    if (content.size() < 2 || !valid_utf8(content))
      throw ConfigError(rule_got_fix("a special token must be UTF-8 of more than one byte.", in_quotes(content),
                                     "a name in brackets, such as <|endoftext|>"));
    if (!seen.insert(content).second)
      throw ConfigError(rule_got_fix("each special token must be named once.", in_quotes(content) + " twice",
                                     concat("name ", in_quotes(content), " once")));
  }
}

LearnedMerges learn_merges(std::vector<std::string> tokens, TrainWords words, const TrainOptions& options,
                           const std::string& prefix, const TrainProgress& progress) {
  return Trainer(std::move(tokens), std::move(words), prefix).run(options, progress);
}

}  // namespace megatron::text
