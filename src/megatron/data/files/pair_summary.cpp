#include "megatron/data/files/pair_summary.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

namespace megatron::data {
namespace {

template <class T>
void find_range(std::span<const std::byte> tokens, PairSummary& summary) {
  T least = std::numeric_limits<T>::max(), greatest = std::numeric_limits<T>::lowest();
  for (std::size_t at = 0; at + sizeof(T) <= tokens.size(); at += sizeof(T)) {
    T token;
    std::memcpy(&token, tokens.data() + at, sizeof token);
    least = std::min(least, token);
    greatest = std::max(greatest, token);
  }
  if (tokens.size() < sizeof(T)) return;
  summary.least_id = static_cast<std::int64_t>(least);
  summary.greatest_id = static_cast<std::int64_t>(greatest);
}

}  // namespace

PairSummary summarize(const IndexedDataset& pair) {
  PairSummary summary;
  summary.tokens = pair.verify();
  summary.shortest_sequence = pair.size() == 0 ? 0 : std::numeric_limits<std::int64_t>::max();
  for (std::int64_t document = 0; document < pair.num_documents(); ++document) {
    std::int64_t tokens = 0;
    for (std::int64_t i = pair.first_sequence(document); i < pair.first_sequence(document + 1); ++i) {
      const std::int64_t length = pair.length(i);
      summary.shortest_sequence = std::min(summary.shortest_sequence, length);
      summary.longest_sequence = std::max(summary.longest_sequence, length);
      tokens += length;
    }
    const auto bin = static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(tokens)));
    if (summary.documents_by_length.size() <= bin) summary.documents_by_length.resize(bin + 1);
    ++summary.documents_by_length[bin];
    summary.empty_documents += tokens == 0 ? 1 : 0;
  }
  visit_integer(pair.dtype(), [&](auto token) { find_range<decltype(token)>(pair.bin(), summary); });
  return summary;
}

}  // namespace megatron::data
