#include "megatron/data/index/split.h"

#include <charconv>
#include <cmath>

#include "megatron/base/error.h"

namespace megatron::data {

std::array<double, 3> split_shares(const std::string& split) {
  const auto fail = [&] {
    throw ConfigError(
        rule_got_fix("a split is one to three shares >= 0, not all 0.", "'" + split + "'", "--split 969,30,1"));
  };
  std::array<double, 3> shares{};
  std::size_t count = 0;
  double sum = 0;
  const char *at = split.data(), *end = at + split.size();
  while (at != end) {
    if (*at == ',' || *at == '/' || *at == ' ') {
      ++at;
      continue;
    }
    double share = 0;
    const auto [next, error] = std::from_chars(at, end, share, std::chars_format::fixed);
    if (error != std::errc() || !std::isfinite(share) || share < 0 || count == shares.size()) fail();
    sum += shares[count++] = share;
    at = next;
  }
  if (!(sum > 0) || !std::isfinite(sum)) fail();
  for (double& share : shares) share /= sum;
  return shares;
}

}  // namespace megatron::data
