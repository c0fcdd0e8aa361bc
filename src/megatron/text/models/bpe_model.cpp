#include "megatron/text/models/bpe_model.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/text/printable.h"
#include "megatron/text/characters/byte_level.h"

namespace megatron::text {
namespace {

/// Slots of an open-addressing table of `entries`: a power of two, at most half full.
std::size_t table_size(std::size_t entries) { return std::bit_ceil(std::max<std::size_t>(entries, 8) * 2); }

int top_bits_shift(std::size_t slots) { return 64 - std::countr_zero(slots); }

}  // namespace

BpeModel::BpeModel(Vocabulary vocabulary) : TokenizerModel(std::move(vocabulary), "bpe") {
  index_bytes();
  index_merges();
  index_tokens_of_pieces();
}

void BpeModel::index_bytes() {
  for (int byte = 0; byte < 256; ++byte) {
    const std::int32_t id = own_id(std::string(1, static_cast<char>(byte)));
    byte_ids_[static_cast<std::size_t>(byte)] = id;
    all_bytes_ = all_bytes_ && id >= 0;
  }
}

void BpeModel::index_merges() {
  const auto& tokens = vocabulary().tokens;
  const auto& merges = vocabulary().merges;
  merges_.resize(table_size(merges.size()));
  merge_shift_ = top_bits_shift(merges_.size());
  merged_.reserve(merges.size());
  byte_pair_ranks_.assign(65536, kNoRank);
  const auto byte_of = [&](std::int32_t id) {  // that the token stands for in pieces, or -1
    const std::string& token = tokens[static_cast<std::size_t>(id)];
    const auto byte = token.size() == 1 ? static_cast<unsigned char>(token[0]) : -1;
    return byte >= 0 && byte_ids_[static_cast<std::size_t>(byte)] == id ? byte : -1;
  };
  for (std::size_t i = 0; i < merges.size(); ++i) {
    const auto [left, right] = merges[i];
    const std::int32_t made = made_by_merge(i);
    std::size_t slot = merge_slot(left, right);
    while (merges_[slot].left >= 0) {
      if (merges_[slot].left == left && merges_[slot].right == right)
        throw ConfigError(
            rule_got_fix("tokenizer: no pair may be merged twice",
                         concat("merge ", i, " makes ", in_quotes(tokens[static_cast<std::size_t>(made)]), " again")));
      slot = (slot + 1) & (merges_.size() - 1);
    }
    if (!vocabulary().equal_ranks || merged_.empty() || merged_.back() != made) merged_.push_back(made);
    const auto rank = static_cast<std::uint32_t>(merged_.size() - 1);
    merges_[slot] = {left, right, rank, made};
    if (const int first = byte_of(left), second = byte_of(right); first >= 0 && second >= 0)
      byte_pair_ranks_[static_cast<std::size_t>(first << 8 | second)] = rank;
  }
}

void BpeModel::index_tokens_of_pieces() {
  const auto& tokens = vocabulary().tokens;
  is_whole_ = std::make_unique<std::atomic<Whole>[]>(tokens.size());
  if (vocabulary().ignore_merges) {
    for (std::size_t id = 0; id < tokens.size(); ++id) is_whole_[id] = Whole::Yes;
    for (const SpecialToken& special : vocabulary().specials)
      is_whole_[static_cast<std::size_t>(special.id)] = Whole::No;
  }
  short_tokens_ = PieceTable(tokens.size());
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    const std::string& token = tokens[id];
    if (token.empty() || token.size() > PieceKey::kMaxBytes || is_outside(static_cast<std::int32_t>(id))) continue;
    short_tokens_.insert(PieceKey::of(token.data(), token.size(), token.size()), static_cast<std::int32_t>(id));
  }
}

std::int32_t BpeModel::token_of(std::string_view piece) const {
  if (piece.size() <= PieceKey::kMaxBytes)
    return short_tokens_.find(PieceKey::of(piece.data(), piece.size(), piece.size()));
  return own_id(piece);
}

/// A piece equal to a token becomes that token only if its merges lead there: a token may be listed without merges.
void BpeModel::encode_piece(std::string_view piece, MergeScratch& scratch, std::vector<std::int32_t>& out) const {
  const std::int32_t id = token_of(piece);
  if (id < 0) return merge_piece(piece, scratch, out);
  std::atomic<Whole>& is_whole = is_whole_[static_cast<std::size_t>(id)];
  const Whole known = is_whole.load(std::memory_order_relaxed);
  if (known == Whole::Yes) return out.push_back(id);
  const std::size_t before = out.size();
  merge_piece(piece, scratch, out);
  if (known == Whole::Unknown)
    is_whole.store(out.size() == before + 1 && out.back() == id ? Whole::Yes : Whole::No, std::memory_order_relaxed);
}

void BpeModel::merge_piece(std::string_view piece, MergeScratch& scratch, std::vector<std::int32_t>& out) const {
  if (piece.size() >= kNoRank)
    throw ConfigError(rule_got_fix("tokenizer: a run of letters, digits, signs or spaces must be shorter than 4 GiB",
                                   concat(piece.size(), " bytes")));
  const auto is_token = [&](char c) { return byte_ids_[static_cast<unsigned char>(c)] >= 0; };
  if (!all_bytes_ && !std::all_of(piece.begin(), piece.end(), is_token)) {
    scratch.known.clear();
    std::copy_if(piece.begin(), piece.end(), std::back_inserter(scratch.known), is_token);
    if (scratch.known.empty()) return;
    piece = scratch.known;
  }
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(piece[i]); };
  std::vector<std::uint32_t>& ranks = scratch.room.ranks;
  scratch.ids.resize(piece.size());
  ranks.resize(piece.size());
  for (std::size_t i = 0; i < piece.size(); ++i) {
    scratch.ids[i] = byte_ids_[byte(i)];
    ranks[i] = i + 1 < piece.size() ? byte_pair_ranks_[std::size_t{byte(i)} << 8 | byte(i + 1)] : kNoRank;
  }
  struct Rules {
    const BpeModel& model;
    std::uint32_t rank(std::int32_t left, std::int32_t right) const { return model.rank_of(left, right); }
    std::int32_t join(std::int32_t, std::int32_t, std::uint32_t rank) const { return model.merged_[rank]; }
  };
  merge_parts(scratch.ids, scratch.room, merged_.size(), Rules{*this});
  out.insert(out.end(), scratch.ids.begin(), scratch.ids.end());
}

}  // namespace megatron::text
