#include "megatron/base/text/code_points.h"

#include <algorithm>

namespace megatron {

CodePoints in_order(CodePoints ranges) {
  std::ranges::sort(ranges);
  CodePoints joined;
  for (const auto& [first, last] : ranges) {
    if (!joined.empty() && first <= joined.back().second + 1)
      joined.back().second = std::max(joined.back().second, last);
    else
      joined.emplace_back(first, last);
  }
  return joined;
}

CodePoints complement(const CodePoints& ranges) {
  CodePoints others;
  std::uint32_t next = 0;
  for (const auto& [first, last] : ranges) {
    if (next < first) others.emplace_back(next, first - 1);
    next = last + 1;
  }
  if (next <= kLastCodePoint) others.emplace_back(next, kLastCodePoint);
  return others;
}

}  // namespace megatron
