#include "megatron/supervise/spikes.h"

#include <algorithm>
#include <cmath>

namespace megatron::supervise {

SpikeWatch::SpikeWatch(double factor, std::size_t window) : factor_(factor), window_(window) {}

double SpikeWatch::median() const {
  if (losses_.size() < window_) return 0;
  std::vector<double> sorted = losses();
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  return *middle;
}

bool SpikeWatch::is_spike(double loss) const { return losses_.size() >= window_ && loss > factor_ * median(); }

void SpikeWatch::add(double loss) {
  if (!std::isfinite(loss)) return;
  losses_.push_back(loss);
  while (losses_.size() > window_) losses_.pop_front();
}

void SpikeWatch::set_losses(const std::vector<double>& losses) {
  losses_.clear();
  for (const double loss : losses) add(loss);
}

}  // namespace megatron::supervise
