#pragma once
#include <cstdint>

#include "megatron/kernels/emulated/driver.h"

namespace megatron::kernels {

/// Calls run() with the threads of emulated launches in other orders than theirs.
template <class Run>
void in_other_orders(const Run& run) {
  for (const std::uint32_t order : {1U, 6U}) {
    emulated::set_launch_order(order);
    run();
    emulated::set_launch_order(0);
  }
}

}  // namespace megatron::kernels
