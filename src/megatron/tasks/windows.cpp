#include "megatron/tasks/windows.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <numeric>

#include "megatron/base/error.h"

namespace megatron::tasks {

std::vector<Window> windows(std::int64_t tokens, std::int64_t window, std::int64_t stride) {
  if (window < 2) throw ConfigError(rule_got_fix("window must be 2 or more.", concat(window), "--window 2, or more"));
  if (stride < 1 || stride > window)
    throw ConfigError(
        rule_got_fix("stride must be 1 to window.", concat(stride, " of ", window), concat("--stride ", window)));
  if (tokens < 2)
    throw ConfigError(
        rule_got_fix("a text must have two tokens to be scored.", concat(tokens), "name a file with more text"));
  std::vector<Window> result;
  for (std::int64_t begin = 0, seen = 0; seen < tokens; begin += stride) {
    Window next{.begin = begin, .size = std::min(window, tokens - begin)};
    next.first_scored = stride == window ? begin + 1 : std::max(seen, begin + 1);
    seen = begin + next.size;
    if (next.scored() > 0) result.push_back(next);
  }
  return result;
}

std::vector<WindowBatch> window_batches(const std::vector<Window>& windows, std::int64_t most,
                                        std::int64_t most_tokens) {
  std::vector<std::int64_t> order(windows.size());
  std::iota(order.begin(), order.end(), 0);
  const auto size_of = [&](std::int64_t i) { return windows[static_cast<std::size_t>(i)].size; };
  std::ranges::stable_sort(order, std::ranges::greater(), size_of);
  std::vector<WindowBatch> result;
  for (const std::int64_t i : order) {
    const bool fits = [&] {
      if (result.empty()) return false;
      const auto rows = static_cast<std::int64_t>(result.back().windows.size());
      return most > 0 ? rows < most : rows < most_tokens / std::max<std::int64_t>(1, result.back().size);
    }();
    if (!fits) result.push_back({.windows = {}, .size = size_of(i)});
    result.back().windows.push_back(i);
  }
  return result;
}

}  // namespace megatron::tasks
