#pragma once
#include <string>

namespace megatron::plan {
struct Fp8Recipe;  // parameters/fp8.h
}

namespace megatron::parallel {

/// Loads the CUDA plugin (comm/cuda_plugin.h), takes its operators (kernels/operators.h), and has ranges drawn
/// (base/ranges.h) where a profiler listens. Once, before ranks start; later calls cost nothing. Throws ConfigError as
/// comm::load_cuda_plugin(), and where the plugin is of another source.
void load_cuda();
/// load_cuda() with the library at `path`, whether or not there is a GPU.
void load_cuda_from(const std::string& path);

/// Makes ATen's products and reductions on CUDA the same in every run, and of 16-bit matrices those that sum in
/// float32: no sum is rounded to bf16 or fp16 between parts of a product. load_cuda() calls it.
void configure_cuda();

/// plan::require_fp8_units() of GPU number `gpu` of this process. After load_cuda().
void require_fp8_units(const plan::Fp8Recipe& recipe, int gpu);

}  // namespace megatron::parallel
