#pragma once
#include <cstdint>
#include <vector>

// Where the scored tokens of an evaluation lie, and which of them are computed together.
namespace megatron::tasks {

/// Tokens [begin, begin + size) of a row of ids, read together; those from first_scored on count, each given all before
/// it in the window.
struct Window {
  std::int64_t begin = 0, size = 0, first_scored = 0;

  std::int64_t scored() const { return begin + size - first_scored; }
  bool operator==(const Window&) const = default;
};

/// Windows that begin at 0, stride, 2 stride, … and end with the text; the last may be shorter. With stride = window
/// every token but the first of a window is scored; with a smaller stride every token but the first of the text, once,
/// in the first window that has it (Shoeybi et al. 2019, appendix E.1). Throws ConfigError unless 1 <= stride <= window
/// and 2 <= window, and where there are fewer than two tokens.
std::vector<Window> windows(std::int64_t tokens, std::int64_t window, std::int64_t stride);

/// Windows that are computed at once, padded to the longest of them.
struct WindowBatch {
  std::vector<std::int64_t> windows;  ///< their indices
  std::int64_t size = 0;              ///< of the longest
};

/// Every window once, the longest first, so that few are padded: `most` at once, or, where that is 0, as many as hold
/// `most_tokens` with the padding, at least one. A function of the windows alone, whatever the ranks: so each is
/// computed with the same others in every layout. `most` and `most_tokens` are 0 or above.
std::vector<WindowBatch> window_batches(const std::vector<Window>& windows, std::int64_t most,
                                        std::int64_t most_tokens);

}  // namespace megatron::tasks
