#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "megatron/comm/group.h"
#include "megatron/model/gpt.h"

// The loss of a long text, read through windows of what a model can see at once.
namespace megatron::generate {

/// Tokens [begin, begin + size) of the text, read together; those from first_scored on count in the loss, each given
/// all before it in the window.
struct Window {
  std::int64_t begin = 0, size = 0, first_scored = 0;

  std::int64_t scored() const { return begin + size - first_scored; }
  bool operator==(const Window&) const = default;
};

/// Windows that begin at 0, stride, 2 stride, … and end with the text; the last may be shorter. With stride = window
/// every token but the first of a window is scored; with a smaller stride every token but the first of the text, once,
/// in the first window that has it. Throws ConfigError unless 1 <= stride <= window and 2 <= window, and where there
/// are fewer than two tokens.
std::vector<Window> windows(std::int64_t tokens, std::int64_t window, std::int64_t stride);

struct TextLoss {
  double nll = 0;  ///< sum over the scored tokens of -ln p
  std::int64_t scored_tokens = 0;

  double mean() const { return nll / static_cast<double>(scored_tokens); }
};

/// Where the ranks that compute it stand: `pp` hold the stages of a model, in order, and `dp` share the windows.
struct LossRanks {
  comm::Group pp, dp;
};

/// Told how many of all windows this rank's share has come to.
using OnWindows = std::function<void(std::int64_t done)>;

/// The loss of `ids` over `windows`, `batch` of equal size at a time. `stage`: this rank's of the model. Collective
/// over tp, pp and dp; every rank returns the same.
TextLoss text_loss(const model::Gpt& stage, const LossRanks& ranks, at::TensorOptions tensor,
                   std::span<const std::int64_t> ids, const std::vector<Window>& windows, std::int64_t batch,
                   const OnWindows& on_windows = {});

}  // namespace megatron::generate
