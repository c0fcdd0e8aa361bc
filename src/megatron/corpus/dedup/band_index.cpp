#include "megatron/corpus/dedup/band_index.h"

#include "megatron/base/machine/parallel.h"

namespace megatron::corpus {

BandIndex::BandIndex(std::size_t bands, std::filesystem::path folder, std::size_t most_bytes, int workers) {
  // While a band is sorted it is there twice; a vector that grows is there one and a half times.
  const std::size_t shares = bands + bands / 2 + static_cast<std::size_t>(workers) * 2;
  const std::size_t most_values = most_bytes / shares / sizeof(std::uint64_t);
  for (std::size_t i = 0; i < bands; ++i) bands_.emplace_back(folder, most_values);
}

void BandIndex::finish(int workers) {
  std::vector<std::vector<std::uint64_t>> scratch(static_cast<std::size_t>(workers));
  for_each_on_threads(bands_.size(), workers,
                      [&](std::size_t band, std::size_t worker) { bands_[band].finish(scratch[worker]); });
}

}  // namespace megatron::corpus
