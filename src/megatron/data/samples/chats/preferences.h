#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megatron/data/dataset.h"
#include "megatron/data/samples/gpt_dataset.h"
#include "megatron/text/chat_template.h"
#include "megatron/text/tokenizer.h"

// Preferences for training: JSON lines {"prompt": P, "chosen": C, "rejected": R}, also compressed. P, C and R are
// strings, which follow one another and end with the end-of-document token; or lists of messages as in sft.h, which the
// chat template of the tokenizer's folder writes. They become a .bin/.idx pair in the cache, two documents per line:
// the prompt with the chosen answer, and with the rejected one.
namespace megatron::data {

/// Tokenizes the preferences of `path` into the cache unless that is done, and returns the prefix of the pair, in which
/// tokens that are not whole within an answer are stored as ~id. Arguments as those of build_chat_pair();
/// `chat_template` may be missing where no line has messages. Throws ConfigError naming file and line for a line that
/// is no preference.
std::string build_preference_pair(const std::string& path, const text::Tokenizer& tokenizer,
                                  const std::optional<text::ChatTemplate>& chat_template,
                                  const std::string& cache_folder, const WaitMessage& say);

/// Throws ConfigError where a part of a pair that build_preference_pair() has made of `path` has no pairs, or one of
/// them has an answer of which no token is within `seq_length`; tells `say` in a line how many are cut off.
void check_preferences(const std::string& path, const GptDatasetSpec& spec, const WaitMessage& say);

/// Samples 2 i and 2 i + 1 are the chosen and the rejected document of a pair, one each, from its first token on; what
/// is longer than a sample is cut off at its end, and labels outside of the answer take no part. The order of the
/// pairs: NumpyRandom(seed) shuffles those of each pass, as many passes as num_samples needs, at least one.
class PreferenceDataset : public Dataset {
 public:
  /// `spec`: of the pair; its split shares out the pairs.
  explicit PreferenceDataset(const GptDatasetSpec& spec);

  std::int64_t size() const override { return 2 * static_cast<std::int64_t>(order_.size()); }
  std::int64_t seq_length() const override { return spec_.index.seq_length; }
  SampleFields fields() const override { return {.loss_mask = true}; }
  void get(std::int64_t i, const Sample& out) const override;
  std::string name_of(std::int64_t i) const override;
  std::int64_t document_of(std::int64_t i) const override;
  std::int64_t documents() const override { return 2 * pairs_; }

 private:
  GptDatasetSpec spec_;
  IndexedDataset data_;
  std::int64_t first_ = 0, pairs_ = 0;  ///< of the part, in pairs
  std::vector<std::int32_t> order_;     ///< of the part's pairs, from 0, pass after pass
};

}  // namespace megatron::data
