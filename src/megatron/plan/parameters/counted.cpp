#include "megatron/plan/parameters/counted.h"

#include <algorithm>
#include <limits>

namespace megatron::plan {
namespace {

bool has_a_row_for_each_token(const ParameterSpec& spec) {
  return spec.name == "embedding.word_embeddings.weight" || spec.name == "output_layer.weight" ||
         spec.name == "output_layer.bias";
}

}  // namespace

std::vector<Range> counted_ranges(const ParameterSpec& spec, bool counts_whole) {
  return counted_ranges(spec, counts_whole, std::numeric_limits<std::int64_t>::max());
}

std::vector<Range> counted_ranges(const ParameterSpec& spec, bool counts_whole, std::int64_t vocab) {
  if (spec.shared_copy || (spec.replicated() && !counts_whole)) return {};
  const bool by_token = has_a_row_for_each_token(spec);
  const std::vector<Range> ranges = piece_ranges(spec);
  std::vector<Range> counted;
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const ShardSlice rows = spec.pieces.empty() ? ShardSlice{0, spec.shape[0]} : spec.pieces[i];
    if (rows.copy != 0) continue;
    Range range = ranges[i];
    if (by_token && rows.length > 0)
      range.end =
          range.begin + range.size() / rows.length * std::clamp<std::int64_t>(vocab - rows.offset, 0, rows.length);
    if (!range.empty()) counted.push_back(range);
  }
  return counted;
}

}  // namespace megatron::plan
