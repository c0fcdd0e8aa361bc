#include "megatron/pipeline/marks.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

namespace megatron::pipeline {

void Marks::add() {
  if (device_.is_cpu()) {
    times_.push_back(Clock::now());
    return;
  }
  events_.emplace_back(device_.type(), c10::EventFlag::BACKEND_DEFAULT);  // with times
  events_.back().record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
}

std::vector<Clock::time_point> Marks::take() {
  if (events_.empty()) return std::exchange(times_, {});
  const std::vector<c10::Event> events = std::exchange(events_, {});
  events.back().synchronize();
  const Clock::time_point last = Clock::now();
  std::vector<Clock::time_point> times;
  for (const c10::Event& event : events) {
    const std::chrono::duration<double, std::milli> before(&event == &events.back() ? 0
                                                                                    : event.elapsedTime(events.back()));
    times.push_back(last - std::chrono::duration_cast<Clock::duration>(before));
  }
  return times;
}

}  // namespace megatron::pipeline
