#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "megatron/config/data_config.h"
#include "megatron/data/dataset.h"
#include "megatron/data/mock_dataset.h"
#include "megatron/data/run_blends.h"
#include "megatron/data/samples/fill_in_middle.h"
#include "megatron/data/samples/gpt_dataset.h"
#include "megatron/data/samples/masked_samples.h"
#include "megatron/text/chat_template.h"
#include "megatron/text/tokenizer.h"

// From what a run reads to samples.
namespace megatron::data {

/// One part of a run as samples.
struct PartSpec {
  Blend blend = {};
  std::size_t place = 0;           ///< of the blend's first prefix among all that the run reads for the part
  std::string split = "969,30,1";  ///< of each pair
  SplitPart part = SplitPart::Train;
  GptIndexSpec index = {};                           ///< the number of samples is that of the blend
  std::string cache_folder = "";                     ///< empty: beside the data
  bool packed = false;                               ///< whole documents, best fit
  GptSampleOptions options = {};                     ///< where not packed
  std::optional<text::Tokenizer> tokenizer = {};     ///< needed by the next three
  std::shared_ptr<const MaskedSamples> masked = {};  ///< the blend names sentences, which make such samples
  std::optional<text::ChatTemplate> chat = {};       ///< the blend names conversations (sft.h)
  bool preferences = false;  ///< the blend names preferences (preferences.h), of strings or for `chat`
  std::optional<FillInMiddleOptions> fill_in_middle = {};  ///< where not packed
  /// With a vocabulary: samples of no blend, of this kind; lengths, number and key follow from the rest.
  MockDatasetSpec mock = {};
};

/// Builds the indices of the part unless they are there, and opens it: one dataset, or a blend of several with
/// Megatron-Core's sizes. Every rank calls it, outside of collectives (build_once()).
std::unique_ptr<const Dataset> open_part(const PartSpec& spec, const WaitMessage& say);

/// Throws the ConfigErrors of open_part() that are seen without building an index; conversations are tokenized.
/// `look_at`: called with each pair. `say`: also told what share of the tokens to learn is cut off, and which sets of a
/// blend without weights are too short for a sample.
void check_part(const PartSpec& spec, const std::function<void(const IndexedDataset&)>& look_at,
                const WaitMessage& say = {});

/// Whether a part holds what samples are made of; nobody needs one that was not asked for by itself. Throws what
/// check_part() does of other things.
bool holds_samples(const PartSpec& spec);

/// The options of fill-in-the-middle with the tokens' ids. Throws ConfigError naming what the tokenizer does not have.
FillInMiddleOptions fill_in_middle_options(const config::FimConfig& fim, const text::Tokenizer& tokenizer);

}  // namespace megatron::data
