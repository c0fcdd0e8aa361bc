#pragma once
#include <cstdint>
#include <string>

#include "megatron/data/samples/sentence_samples.h"

namespace megatron::data {

/// What data must know of the samples of a kind of model: models/NAME/data.cpp.
struct SampleKind {
  /// What samples of `seq_length`, of two segments or one, ask of the sentences in them. Null: samples are cut out of a
  /// stream of documents.
  SentenceBounds (*sentences)(std::int64_t seq_length, bool two_segments) = nullptr;
};

/// That of the kind that model.architecture names (config::model_kind_row).
const SampleKind& sample_kind(const std::string& architecture);

}  // namespace megatron::data
