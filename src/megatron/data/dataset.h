#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace megatron::data {

/// What there is to know of a sample that is seen whole (BERT, T5's encoder) besides its tokens.
struct PairInfo {
  std::int64_t length = 0;  ///< tokens before the padding
  bool swapped = false;     ///< its two segments are in the other order
};

/// Where a sample is written: each span has seq_length elements, or none for what is not wanted. Of a sample with a
/// decoder's tokens, these, labels and loss mask have SampleFields::decoder_length.
struct Sample {
  std::span<std::int64_t> tokens = {};
  std::span<std::int64_t> labels = {};          ///< the token after each
  std::span<float> loss_mask = {};              ///< 1, or 0 where the label takes no part in the loss
  std::span<std::int64_t> position_ids = {};    ///< from 0, perhaps from 0 again where a document begins
  std::span<std::int32_t> first_key = {};       ///< first position that attention may see: 0, or the document's begin
  std::span<std::int64_t> types = {};           ///< the segment of each: 0 or 1; where there are none not written
  PairInfo* pair = nullptr;                     ///< where samples are not seen whole not written
  std::span<std::int64_t> decoder_tokens = {};  ///< of T5
};

/// Which parts of a dataset's samples say anything: the others are 1; 0, 1, 2, …; 0. `pairs`: types and pair.
struct SampleFields {
  bool loss_mask = false, position_ids = false, first_key = false, pairs = false;
  std::int64_t decoder_length = 0;  ///< T5's: pair says the encoder's length, and there are no types; 0: no decoder
};

/// Samples of one length in a fixed order: what a training step reads from.
/// A sample is a function of its number alone, whoever asks for it and when. Every member is safe to call from several
/// threads.
class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual std::int64_t size() const = 0;
  virtual std::int64_t seq_length() const = 0;
  virtual SampleFields fields() const = 0;

  /// Writes sample `i` of [0, size()) into the caller's buffers. Throws std::out_of_range for another `i`,
  /// std::logic_error for spans of another length, ConfigError for a damaged file.
  virtual void get(std::int64_t i, const Sample& out) const = 0;

  /// What messages call sample `i`: its file and its number there.
  virtual std::string name_of(std::int64_t i) const = 0;

  /// Of samples that are documents each: which of documents() sample `i` is, from 0 on; the first documents() samples
  /// are all of them, in some order. Of other samples documents() is 0.
  virtual std::int64_t document_of(std::int64_t i) const { return i; }
  virtual std::int64_t documents() const { return 0; }
};

/// Throws std::logic_error unless each span of `out` is empty or has `seq_length` elements.
void check_spans(const Sample& out, std::int64_t seq_length);

}  // namespace megatron::data
