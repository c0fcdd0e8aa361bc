#include "megatron/corpus/band_index.h"

#include <atomic>

#include "megatron/corpus/threads.h"

namespace megatron::corpus {

BandIndex::BandIndex(std::size_t bands, std::filesystem::path folder, std::size_t most_bytes, int workers) {
  // While a band is sorted it is there twice; a vector that grows is there one and a half times.
  const std::size_t shares = bands + bands / 2 + static_cast<std::size_t>(workers) * 2;
  const std::size_t most_values = most_bytes / shares / sizeof(std::uint64_t);
  for (std::size_t i = 0; i < bands; ++i) bands_.emplace_back(folder, most_values);
}

void BandIndex::finish(int workers) {
  std::atomic<std::size_t> next = 0;
  on_threads(workers, [&](int) {
    std::vector<std::uint64_t> scratch;
    for (std::size_t band = next++; band < bands_.size(); band = next++) bands_[band].finish(scratch);
  });
}

}  // namespace megatron::corpus
