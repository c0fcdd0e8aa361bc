#pragma once
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "megatron/data/dataset.h"
#include "megatron/data/files/npy.h"
#include "megatron/data/index/blend.h"
#include "megatron/data/index/index_cache.h"

namespace megatron::data {

/// Samples of several datasets in one order, Megatron-Core's (blend.h). The order lies in files, as a dataset's own
/// index does.
class BlendedDataset : public Dataset {
 public:
  struct Spec {
    std::vector<double> weights = {};         ///< normalized, or the sets' sizes
    std::optional<std::int64_t> size = {};    ///< samples of the blend; nothing: all of every set
    std::filesystem::path cache_folder = {};  ///< of the order
    std::string name = {};                    ///< part of the files' names: train, valid or test
  };

  /// Builds the order unless it is there, and opens it. `sets` have one sample length. Throws ConfigError where the
  /// order takes more samples of a set than that has.
  BlendedDataset(std::vector<std::unique_ptr<const Dataset>> sets, const Spec& spec, const WaitMessage& say);

  std::int64_t size() const override { return set_->size(); }
  std::int64_t seq_length() const override { return sets_.front()->seq_length(); }
  SampleFields fields() const override;
  void get(std::int64_t i, const Sample& out) const override;
  std::string name_of(std::int64_t i) const override;

  /// The set that sample `i` is from, and its number there.
  struct BlendedSample {
    std::int64_t set, sample;
  };
  BlendedSample place_of(std::int64_t i) const;

 private:
  void build(const Spec& spec, const CacheEntry& entry) const;

  std::vector<std::unique_ptr<const Dataset>> sets_;
  std::optional<NpyArray> set_, sample_;
};

}  // namespace megatron::data
