#pragma once

namespace megatron::parallel {

/// Loads the CUDA plugin (comm/cuda_plugin.h) and takes its operators (kernels/operators.h). Once, before ranks start;
/// later calls cost nothing. Throws ConfigError as comm::load_cuda_plugin(), and where the plugin is of another source.
void load_cuda();

}  // namespace megatron::parallel
