#pragma once
#include <gtest/gtest.h>

#include <cstdint>

#include "megatron/kernels/operators.h"
#include "megatron/kernels/phases/operators/table.h"

namespace megatron::testing {

/// The operators of a GPU, whose launches go nowhere: for tensors on at::kMeta, which have shapes and no numbers.
struct NoDriver {
  template <class Kernel>
  static void launch(const typename Kernel::Args&, std::int64_t blocks) {
    ++launches();
    EXPECT_GT(blocks, 0);
  }
  static std::int64_t& launches() {
    static std::int64_t count = 0;
    return count;
  }
};

/// While one lives, they are those of every device but the CPU.
class NoDriverOperators {
 public:
  NoDriverOperators() {
    static const kernels::Operators table = kernels::phases::operators_of<NoDriver>();
    kernels::set_cuda_operators(table, sizeof table);
    NoDriver::launches() = 0;
  }
  ~NoDriverOperators() {
    static const kernels::Operators none;
    kernels::set_cuda_operators(none, sizeof none);
  }
  NoDriverOperators(const NoDriverOperators&) = delete;
  NoDriverOperators& operator=(const NoDriverOperators&) = delete;
};

}  // namespace megatron::testing
