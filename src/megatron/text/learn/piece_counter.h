#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "megatron/text/models/piece_key.h"

namespace megatron::text {

/// How often each piece occurs in texts. For one thread; counters of several threads are merged.
class PieceCounter {
 public:
  PieceCounter();

  /// Counts a piece; `readable` bytes may be read from where it begins.
  void add(std::string_view piece, std::size_t readable) {
    if (piece.size() <= PieceKey::kMaxBytes)
      add_short(PieceKey::of(piece.data(), piece.size(), readable), 1);
    else
      ++long_[std::string(piece)];
  }
  void merge(const PieceCounter& other);

  /// Number of different pieces.
  std::size_t distinct() const { return used_ + long_.size(); }

  /// Calls `visit(std::string_view piece, std::uint64_t count)` for each piece, in no particular order.
  void for_each(const std::function<void(std::string_view, std::uint64_t)>& visit) const;

 private:
  struct Entry {
    PieceKey key;
    std::uint64_t count = 0;
  };

  void add_short(const PieceKey& key, std::uint64_t count);
  void grow();

  std::vector<Entry> table_;  // open addressing: pieces of at most 15 bytes, nearly all there are
  int shift_;
  std::size_t used_ = 0;
  std::unordered_map<std::string, std::uint64_t> long_;
};

/// Cuts a document into pieces and counts them.
using CountPieces = std::function<void(std::string_view document, PieceCounter& counter)>;

/// GPT-2's pieces (PieceScanner): what byte-level BPE learns from.
void count_gpt2_pieces(std::string_view document, PieceCounter& counter);

/// Counts the pieces of all documents that `next` gives on `threads` threads. The counts do not depend on the number of
/// threads. `next` fills its argument with the next document and returns false at the end; one thread at a time calls
/// it. What it throws is thrown again here.
PieceCounter count_pieces(const std::function<bool(std::string&)>& next, int threads,
                          const CountPieces& cut = count_gpt2_pieces);

}  // namespace megatron::text
