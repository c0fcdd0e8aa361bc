#pragma once
#include <optional>
#include <string>

namespace megatron {

constexpr const char* kCudaPlugin = "libmegatron_cuda.so";  ///< comm/cuda_plugin.h loads it

/// Whether this machine shows an NVIDIA GPU, whichever number it has. Loads nothing.
bool gpu_present();

/// The GPUs that a process sees: `count` as CUDA counts them, `named` as CUDA_VISIBLE_DEVICES names them, where it is
/// set.
struct VisibleGpus {
  int count = 0;
  std::optional<std::string> named = {};
};
/// Which of them rank `local_rank` of the `local_size` on this machine computes on: number local_rank where each can
/// have one, and number 0 where the launcher has named a single one for this process (as Slurm does with
/// --gpus-per-task). Throws ConfigError where there are fewer than ranks.
int gpu_of_rank(const VisibleGpus& gpus, int local_rank, int local_size);

/// The plugin's path: in the program's folder, as built; in ../lib/megatron of it, as installed; or where libraries of
/// the program are looked for, as in one that embeds the library by find_package(megatron), whose run path names the
/// library's folder. "" where it is in none. Loads nothing.
std::string cuda_plugin();

}  // namespace megatron
