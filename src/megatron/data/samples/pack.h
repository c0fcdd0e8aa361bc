#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "megatron/data/files/indexed_dataset.h"
#include "megatron/data/index/gpt_index.h"

// Samples made of whole documents. A document of n tokens has n - 1 places, each a token and the label after it; a
// longer one than a sample is cut into pieces of seq_length places, the last of which is shorter.
namespace megatron::data {

/// How samples are made of pieces.
enum class Packing : std::uint8_t {
  BestFit,  ///< pieces from the longest to the shortest, each into the fullest sample that has room for it, else into a
            ///< new one: best-fit decreasing, Ding et al., "Fewer Truncations Improve Language Modeling", ICML 2024
  Alone,    ///< each document is a sample; what is longer than one is left out
};

/// Places [first, first + size) of a sequence.
struct SequenceSlice {
  std::int64_t sequence = 0, first = 0, size = 0;
};

/// The piece that begins at place `first` of a sequence of `length` tokens.
SequenceSlice piece_at(std::int64_t sequence, std::int64_t first, std::int64_t length, std::int64_t seq_length);

/// One pass over the sequences of a range, packed.
struct PackedPass {
  std::vector<std::int32_t> sequence, first;  ///< of each piece, sample after sample
  std::vector<std::int64_t> begins;           ///< of each sample, its first piece; one more at the end
};

/// Packs the sequences in the order `order`, which decides between pieces of one length; the number of samples does not
/// depend on it. Sequences of fewer than two tokens have no place and no part. Time and memory are linear. Throws
/// ConfigError for a negative length.
PackedPass pack(const IndexedDataset& data, std::span<const std::int32_t> order, std::int64_t seq_length,
                Packing packing);

}  // namespace megatron::data
