#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "megatron/data/files/indexed_dataset.h"
#include "megatron/data/files/npy.h"

// The order of a GPT dataset's samples, as Megatron-Core computes it: the sequences of a split,
// repeated and shuffled (document index), are one stream of tokens; sample k of the stream is tokens [k*s, k*s + s +
// 1), found through its first token's place (sample index); samples are drawn in a shuffled order (shuffle index).
namespace megatron::data {

/// Sequences [first, last).
struct SequenceRange {
  std::int64_t first = 0, last = 0;
  std::int64_t size() const { return last - first; }
};

enum class SplitPart : std::uint8_t { Train, Valid, Test };
const char* split_part_name(SplitPart part);

/// "969,30,1" -> what each part gets of `sequences`. Missing shares are 0; parts with a share of 0 get nothing; bounds
/// are rounded half to even. Throws ConfigError as split_shares() does.
std::array<SequenceRange, 3> split_ranges(const std::string& split, std::int64_t sequences);

/// Tokens of the longest sample; rules.cpp of plan/ bounds the option data.seq_length by the same.
inline constexpr std::int64_t kMaxSample = std::int64_t{1} << 22;

/// Everything that decides the order of a split's samples.
struct GptIndexSpec {
  std::int64_t seq_length = 0;
  std::uint64_t seed = 1234;                     ///< below 2^32, as numpy demands
  std::optional<std::int64_t> num_samples = {};  ///< at least so many, by repeating the split; nothing: one pass
  bool extra_token = true;    ///< a sample has seq_length + 1 tokens, so that the last position has a label
  bool keep_partial = false;  ///< the last tokens make a shorter sample instead of being left out
};

/// Throws ConfigError, with all the numbers, when samples are asked of an empty part.
void check_split(SplitPart part, const std::string& split, const SequenceRange& range, const GptIndexSpec& spec,
                 const IndexedDataset& data);

/// The sizes of the index, from sums alone.
struct GptIndexPlan {
  std::int64_t tokens_per_epoch = 0;
  std::int64_t epochs = 1;
  bool separate_last_epoch = false;      ///< the last pass is shuffled apart because little of it is needed
  std::int64_t samples = 0;              ///< all that the epochs hold: at least num_samples
  std::int64_t samples_before_last = 0;  ///< of these, before the last epoch, where that is separate
};

/// Throws ConfigError when samples are asked of no tokens, more than can be counted, or longer than kMaxSample.
GptIndexPlan plan_gpt_index(const GptIndexSpec& spec, std::int64_t tokens_per_epoch);

/// The sample index alone: `out` has (plan.samples + 1) x 2 entries, each pair a position in the document index and a
/// token within the sequence that stands there. `documents`: the document index. `lengths`: those of all sequences,
/// int32 as they lie in an .idx file, none negative.
void fill_sample_index(const GptIndexSpec& spec, const GptIndexPlan& plan, std::span<const std::int32_t> documents,
                       std::span<const std::byte> lengths, std::span<std::int32_t> out);
void fill_sample_index(const GptIndexSpec& spec, const GptIndexPlan& plan, std::span<const std::int32_t> documents,
                       std::span<const std::byte> lengths, std::span<std::int64_t> out);

/// Tokens of the sequences in `range`. Throws ConfigError naming the sequence for a length below 0.
std::int64_t tokens_of(const IndexedDataset& data, const SequenceRange& range);

/// The three files of a split.
struct GptIndexFiles {
  std::string document_index, sample_index, shuffle_index;
};

/// The three files, mapped. Throws ConfigError when one is missing or damaged, or when their sizes do not fit one
/// another.
struct GptIndex {
  explicit GptIndex(const GptIndexFiles& files);
  NpyArray document, sample, shuffle;  ///< [positions], [samples + 1, 2], [samples]
};

/// Throws ConfigError where the numbers of the sequences do not fit the int32 that indices keep them in.
void check_sequences(const SequenceRange& range);

/// Computes the index and writes its files, the shuffle index last. Memory does not grow with the data: arrays are
/// built in the mapped files. Throws ConfigError when samples are asked of a range without tokens, or when the disk has
/// no room for the files.
GptIndexPlan build_gpt_index(const IndexedDataset& data, const SequenceRange& range, const GptIndexSpec& spec,
                             const GptIndexFiles& files);

}  // namespace megatron::data
