#include "megatron/parallel/cuda.h"

#include "megatron/comm/cuda_plugin.h"
#include "megatron/kernels/operators.h"

namespace megatron::parallel {

void load_cuda() {
  comm::load_cuda_plugin();
  using Table = const kernels::Operators* (*)(std::size_t*);
  std::size_t size = 0;
  const auto* const table = reinterpret_cast<Table>(comm::cuda_plugin_entry("megatron_cuda_operators"))(&size);
  kernels::set_cuda_operators(*table, size);
}

}  // namespace megatron::parallel
