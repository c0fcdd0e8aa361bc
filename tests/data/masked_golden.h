#pragma once
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "megatron/data/files/npy.h"
#include "megatron/data/samples/masking.h"
#include "megatron/data/samples/sentence_samples.h"
#include "tests/data/support.h"

// Samples of BERT and T5 by megatron-core: a few in samples/, all in golden/megatron (tests/golden/README.md).
namespace megatron::data {

/// One part of one case.
struct MaskedCase {
  std::string root, stem;  // stem: what its array files begin with
  nlohmann::json settings, part;
  SentenceSource source;
};

inline std::vector<std::int64_t> values_of(const std::string& path) {
  const NpyArray array(path);
  std::vector<std::int64_t> values;
  for (std::int64_t i = 0; i < array.size(); ++i) values.push_back(array[i]);
  return values;
}

/// All parts of all cases of `kind`, "bert" or "t5".
inline std::vector<MaskedCase> masked_cases(const std::string& kind, const std::string& cache) {
  std::vector<MaskedCase> cases;
  for (const std::string& root : {kOwnGolden, kSharedGolden}) {
    if (!std::filesystem::exists(root + kind)) continue;
    for (const auto& folder : std::filesystem::directory_iterator(root + kind)) {
      if (!std::filesystem::exists(folder.path() / "case.json")) continue;
      const auto settings = nlohmann::json::parse(read_bytes((folder.path() / "case.json").string()));
      const std::vector<std::int64_t> sizes = settings["sizes"];
      for (const SplitPart part : {SplitPart::Train, SplitPart::Valid, SplitPart::Test}) {
        const char* name = split_part_name(part);
        if (!settings["splits"].contains(name)) continue;
        cases.push_back({root,
                         (folder.path() / name).string(),
                         settings,
                         settings["splits"][name],
                         {.prefix = root + "indexed/" + settings["prefix"].get<std::string>(),
                          .split = settings["split"],
                          .part = part,
                          .short_probability = settings["masking"]["short_sequence_probability"],
                          .seed = settings["seed"],
                          .num_samples = sizes[static_cast<std::size_t>(part)],
                          .cache_folder = cache}});
      }
    }
  }
  return cases;
}

inline MaskingOptions masking_of(const nlohmann::json& settings) {
  const nlohmann::json& masking = settings["masking"];
  return {.probability = masking["masking_probability"],
          .max_ngram = masking["masking_max_ngram"],
          .whole_words = masking["masking_do_full_word"],
          .favor_longer = masking["masking_use_longer_ngrams"],
          .geometric = masking["masking_use_geometric_distribution"],
          .permute = masking["masking_do_permutation"],
          .permute_seed = settings.value("global_seed", 0u)};
}

/// The vocabulary that the cases were made with.
inline MaskingVocabulary vocabulary_of(const nlohmann::json& settings) {
  const nlohmann::json& tokens = settings["tokenizer"];
  MaskingVocabulary vocabulary{.size = tokens["vocab_size"],
                               .pad = tokens["pad"],
                               .cls = tokens["cls"],
                               .sep = tokens["sep"],
                               .mask = tokens["mask"],
                               .begin = tokens["bos"],
                               .end = tokens["eos"]};
  const std::string bits = read_bytes(kOwnGolden + "indexed/continues.bits");
  vocabulary.continues.resize(static_cast<std::size_t>(vocabulary.size));
  for (std::size_t i = 0; i < std::min(vocabulary.continues.size(), 8 * bits.size()); ++i)
    vocabulary.continues[i] = bits[i / 8] >> i % 8 & 1;
  if (!tokens["sentinels"].empty())
    for (std::int64_t id = tokens["sentinels"][0]; id <= tokens["sentinels"][1]; ++id)
      vocabulary.sentinels.push_back(id);
  return vocabulary;
}

}  // namespace megatron::data
