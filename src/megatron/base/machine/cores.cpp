#include "megatron/base/machine/cores.h"

#include <sched.h>

#include <algorithm>
#include <numeric>
#include <thread>

namespace megatron {
namespace {

std::vector<int> find_cores() {
  std::vector<int> numbers;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0)
    for (int number = 0; number < CPU_SETSIZE; ++number)
      if (CPU_ISSET(number, &set)) numbers.push_back(number);
  if (numbers.empty()) {  // more than CPU_SETSIZE: it may run on all, as far as is known
    numbers.resize(std::max(1U, std::thread::hardware_concurrency()));
    std::iota(numbers.begin(), numbers.end(), 0);
  }
  return numbers;
}

}  // namespace

const std::vector<int>& core_numbers() {
  static const std::vector<int> numbers = find_cores();
  return numbers;
}

}  // namespace megatron
