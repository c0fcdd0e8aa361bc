#include "megatron/text/bpe_model.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "megatron/base/error.h"
#include "megatron/text/byte_level.h"

namespace megatron::text {
namespace {

/// Slots of an open-addressing table of `entries`: a power of two, at most half full.
std::size_t table_size(std::size_t entries) { return std::bit_ceil(std::max<std::size_t>(entries, 8) * 2); }

int top_bits_shift(std::size_t slots) { return 64 - std::countr_zero(slots); }

/// FNV-1a, 64 bits: short, and the same on every machine.
class Fnv {
 public:
  void add(std::string_view bytes) {
    for (const char c : bytes) state_ = (state_ ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  }
  void add(std::uint64_t value) {
    for (int i = 0; i < 8; ++i, value >>= 8) state_ = (state_ ^ (value & 0xFF)) * 0x100000001B3u;
  }
  std::uint64_t value() const { return state_; }

 private:
  std::uint64_t state_ = 0xCBF29CE484222325u;
};

}  // namespace

BpeModel::BpeModel(Vocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {
  index_tokens();
  index_merges();
  index_specials();
  index_whole_pieces();
  compute_fingerprint();
}

void BpeModel::index_tokens() {
  const auto& tokens = vocabulary_.tokens;
  if (tokens.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()))
    throw ConfigError(rule_got_fix("tokenizer: ids must fit 31 bits", concat(tokens.size(), " tokens")));
  token_ids_.reserve(tokens.size());
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    if (tokens[id].empty())
      throw ConfigError(rule_got_fix("tokenizer: a token must have at least one byte", concat("id ", id, " is empty")));
    const auto [seen, is_new] = token_ids_.emplace(tokens[id], static_cast<std::int32_t>(id));
    if (!is_new)
      throw ConfigError(rule_got_fix("tokenizer: no two ids may have the same bytes",
                                     concat("ids ", seen->second, " and ", id, " are both ", printable(tokens[id]))));
  }
  for (int byte = 0; byte < 256; ++byte) {
    const auto found = token_ids_.find(std::string(1, static_cast<char>(byte)));
    if (found == token_ids_.end())
      throw ConfigError(rule_got_fix("tokenizer: every single byte must be a token, or some text could not be encoded",
                                     concat("no token for byte ", byte)));
    byte_ids_[static_cast<std::size_t>(byte)] = found->second;
  }
}

void BpeModel::index_merges() {
  const auto& tokens = vocabulary_.tokens;
  const auto& merges = vocabulary_.merges;
  merges_.resize(table_size(merges.size()));
  merge_shift_ = top_bits_shift(merges_.size());
  merged_.reserve(merges.size());
  std::string joined;
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const auto [left, right] = merges[rank];
    const auto size = static_cast<std::int32_t>(tokens.size());
    if (left < 0 || right < 0 || left >= size || right >= size)
      throw ConfigError(rule_got_fix(concat("tokenizer: merge ", rank, " must join two ids of the vocabulary"),
                                     concat("ids ", left, " and ", right, " of ", size)));
    joined.assign(tokens[static_cast<std::size_t>(left)]).append(tokens[static_cast<std::size_t>(right)]);
    const auto found = token_ids_.find(joined);
    if (found == token_ids_.end())
      throw ConfigError(rule_got_fix(concat("tokenizer: merge ", rank, " must make a token of the vocabulary"),
                                     concat("no token ", printable(joined))));
    std::size_t slot = merge_slot(left, right);
    while (merges_[slot].left >= 0) {
      if (merges_[slot].left == left && merges_[slot].right == right)
        throw ConfigError(
            rule_got_fix("tokenizer: no pair may be merged twice",
                         concat("merges ", merges_[slot].rank, " and ", rank, " both make ", printable(joined))));
      slot = (slot + 1) & (merges_.size() - 1);
    }
    merges_[slot] = {left, right, static_cast<std::uint32_t>(rank), found->second};
    merged_.push_back(found->second);
  }
  byte_pair_ranks_.resize(65536);
  for (std::size_t first = 0; first < 256; ++first)
    for (std::size_t second = 0; second < 256; ++second)
      byte_pair_ranks_[first << 8 | second] = rank_of(byte_ids_[first], byte_ids_[second]);
}

/// A piece equal to a token becomes that token only if its merges lead there (a token may be listed without merges),
/// so each token is merged once to see.
void BpeModel::index_whole_pieces() {
  const auto& tokens = vocabulary_.tokens;
  std::vector<bool> is_special(tokens.size());
  for (const SpecialToken& special : vocabulary_.specials) is_special[static_cast<std::size_t>(special.id)] = true;
  is_whole_.resize(tokens.size());
  short_tokens_.resize(table_size(tokens.size()));
  short_shift_ = top_bits_shift(short_tokens_.size());
  MergeScratch scratch;
  std::vector<std::int32_t> merged;
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    merged.clear();
    if (!vocabulary_.ignore_merges) {
      merge_piece(tokens[id], scratch, merged);
      if (merged.size() != 1) continue;
    } else if (is_special[id]) {
      continue;
    }
    is_whole_[id] = true;
    if (tokens[id].size() > PieceKey::kMaxBytes) continue;
    const PieceKey key = PieceKey::of(tokens[id].data(), tokens[id].size(), tokens[id].size());
    std::size_t slot = key.hash() >> short_shift_;
    while (short_tokens_[slot].key.hi != 0) slot = (slot + 1) & (short_tokens_.size() - 1);
    short_tokens_[slot] = {key, static_cast<std::int32_t>(id)};
  }
}

void BpeModel::index_specials() {
  const auto& specials = vocabulary_.specials;
  for (std::size_t i = 0; i < specials.size(); ++i) {
    const auto found = token_ids_.find(specials[i].content);
    if (found == token_ids_.end() || found->second != specials[i].id)
      throw ConfigError(rule_got_fix(concat("tokenizer: special token ", printable(specials[i].content),
                                            " must have the id that the vocabulary gives it"),
                                     concat("id ", specials[i].id)));
    specials_by_byte_[static_cast<unsigned char>(specials[i].content[0])].push_back(static_cast<std::int32_t>(i));
  }
  for (auto& bucket : specials_by_byte_)
    std::stable_sort(bucket.begin(), bucket.end(), [&](std::int32_t a, std::int32_t b) {
      return specials[static_cast<std::size_t>(a)].content.size() >
             specials[static_cast<std::size_t>(b)].content.size();
    });
}

void BpeModel::compute_fingerprint() {
  Fnv hash;
  for (const std::string& token : vocabulary_.tokens) {
    hash.add(token.size());
    hash.add(token);
  }
  for (const auto& [left, right] : vocabulary_.merges)
    hash.add(static_cast<std::uint64_t>(left) << 32 | static_cast<std::uint32_t>(right));
  auto ids = std::vector<std::int32_t>();
  for (const SpecialToken& special : vocabulary_.specials) ids.push_back(special.id);
  std::sort(ids.begin(), ids.end());
  for (const std::int32_t id : ids) hash.add(static_cast<std::uint64_t>(id));
  hash.add(static_cast<std::uint64_t>(vocabulary_.ignore_merges));
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(hash.value()));
  fingerprint_ = concat("bpe-", vocabulary_.tokens.size(), "-", digits);
}

std::int32_t BpeModel::whole_piece(std::string_view piece) const {
  if (piece.size() <= PieceKey::kMaxBytes) return whole_piece(PieceKey::of(piece.data(), piece.size(), piece.size()));
  const auto found = token_ids_.find(piece);
  return found != token_ids_.end() && is_whole_[static_cast<std::size_t>(found->second)] ? found->second : -1;
}

void BpeModel::merge_piece(std::string_view piece, MergeScratch& scratch, std::vector<std::int32_t>& out) const {
  if (piece.size() >= kNoRank)
    throw ConfigError(rule_got_fix("tokenizer: a run of letters, digits, signs or spaces must be shorter than 4 GiB",
                                   concat(piece.size(), " bytes")));
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(piece[i]); };
  scratch.ids.resize(piece.size());
  scratch.ranks.resize(piece.size());
  for (std::size_t i = 0; i < piece.size(); ++i) {
    scratch.ids[i] = byte_ids_[byte(i)];
    scratch.ranks[i] = i + 1 < piece.size() ? byte_pair_ranks_[std::size_t{byte(i)} << 8 | byte(i + 1)] : kNoRank;
  }
  // Moving a short array costs less than keeping a heap; the two give the same tokens.
  if (piece.size() <= 48)
    merge_short(scratch);
  else
    merge_long(scratch);
  out.insert(out.end(), scratch.ids.begin(), scratch.ids.end());
}

void BpeModel::merge_short(MergeScratch& scratch) const {
  std::int32_t* ids = scratch.ids.data();
  std::uint32_t* ranks = scratch.ranks.data();
  std::size_t n = scratch.ids.size();
  while (n > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < n; ++i)
      if (ranks[i] < ranks[best]) best = i;
    if (ranks[best] == kNoRank) break;
    ids[best] = merged_[ranks[best]];
    --n;
    std::copy(ids + best + 2, ids + n + 1, ids + best + 1);
    std::copy(ranks + best + 2, ranks + n + 1, ranks + best + 1);
    ranks[best] = best + 1 < n ? rank_of(ids[best], ids[best + 1]) : kNoRank;
    if (best > 0) ranks[best - 1] = rank_of(ids[best - 1], ids[best]);
  }
  scratch.ids.resize(n);
}

/// A heap of the pairs and a linked list of the symbols. A heap entry is out of date when its symbol's rank changed.
void BpeModel::merge_long(MergeScratch& scratch) const {
  const auto n = static_cast<std::uint32_t>(scratch.ids.size());
  std::vector<std::int32_t>& ids = scratch.ids;
  std::vector<std::uint32_t>&ranks = scratch.ranks, &previous = scratch.previous, &next = scratch.next;
  std::vector<std::uint64_t>& heap = scratch.heap;
  previous.resize(n);
  next.resize(n);
  heap.clear();
  for (std::uint32_t i = 0; i < n; ++i) {
    previous[i] = i - 1;  // of the first: kNoRank, "none"
    next[i] = i + 1;      // of the last: n, "none"
    if (ranks[i] != kNoRank) heap.push_back(std::uint64_t{ranks[i]} << 32 | i);
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  const auto rank_pair = [&](std::uint32_t i) {
    ranks[i] = next[i] < n ? rank_of(ids[i], ids[next[i]]) : kNoRank;
    if (ranks[i] == kNoRank) return;
    heap.push_back(std::uint64_t{ranks[i]} << 32 | i);
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const std::uint64_t top = heap.back();
    heap.pop_back();
    const auto i = static_cast<std::uint32_t>(top);
    if (ranks[i] != top >> 32) continue;
    const std::uint32_t gone = next[i];
    ids[i] = merged_[ranks[i]];
    ids[gone] = -1;
    ranks[gone] = kNoRank;
    next[i] = next[gone];
    if (next[i] < n) previous[next[i]] = i;
    rank_pair(i);
    if (previous[i] != kNoRank) rank_pair(previous[i]);
  }
  ids.erase(std::remove(ids.begin(), ids.end(), -1), ids.end());
}

const SpecialToken* BpeModel::find_special(std::string_view text, std::size_t from, std::size_t& at) const {
  for (at = from; at < text.size(); ++at)
    for (const std::int32_t index : specials_by_byte_[static_cast<unsigned char>(text[at])]) {
      const SpecialToken& special = vocabulary_.specials[static_cast<std::size_t>(index)];
      if (text.substr(at).starts_with(special.content)) return &special;
    }
  return nullptr;
}

}  // namespace megatron::text
