#pragma once
#include <cstdint>
#include <string>

#include "megatron/data/dataset.h"

namespace megatron::data {

/// What samples of a kind of model look like.
enum class MockKind : std::uint8_t { Stream, Pairs, EncoderDecoder };  ///< of a GPT, a BERT, a T5

struct MockDatasetSpec {
  MockKind kind = MockKind::Stream;
  std::int64_t vocab = 0;  ///< tokens of the model; the last one ends documents, masks, and begins what a T5 writes
  std::int64_t seq_length = 0;
  std::int64_t decoder_seq_length = 0;  ///< of a T5
  std::int64_t num_samples = 1;
  std::uint64_t key = 0;       ///< of the random numbers (stream_key())
  bool sentence_order = true;  ///< of a BERT: two segments, perhaps swapped
  double mask_probability = 0.15;
};

/// Samples without files, to try a layout or measure it (data.mock_data), in the spirit of Megatron-LM's: documents
/// count upwards from 1 through the vocabulary, have random lengths and end with the last token, so a model can learn
/// to continue. A sample is a function of its number and the key, drawn from Philox: no index, the same on every rank.
///
/// Stream: seq_length + 1 tokens of such documents, from a random place of one. Pairs: one stretch of counting in two
/// segments, some tokens hidden behind the last token. EncoderDecoder: the decoder continues where the encoder's
/// stretch ends.
class MockDataset : public Dataset {
 public:
  /// Throws ConfigError where the vocabulary has fewer than three tokens.
  explicit MockDataset(const MockDatasetSpec& spec);

  std::int64_t size() const override { return spec_.num_samples; }
  std::int64_t seq_length() const override { return spec_.seq_length; }
  SampleFields fields() const override;
  void get(std::int64_t i, const Sample& out) const override;
  std::string name_of(std::int64_t i) const override;

 private:
  std::int64_t draw(std::int64_t i, std::uint64_t what, std::int64_t below) const;
  std::int64_t counted(std::int64_t number) const { return 1 + number % (spec_.vocab - 2); }
  void stream(std::int64_t i, const Sample& out) const;
  void pairs(std::int64_t i, const Sample& out) const;
  void encoder_decoder(std::int64_t i, const Sample& out) const;

  MockDatasetSpec spec_;
};

}  // namespace megatron::data
