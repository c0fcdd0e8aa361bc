#pragma once
#include <string>

namespace megatron {

constexpr const char* kCudaPlugin = "libmegatron_cuda.so";  ///< comm/cuda_plugin.h loads it

/// Whether this machine shows an NVIDIA GPU. Loads nothing.
bool gpu_present();

/// The plugin's path: in the program's folder, as built; in ../lib/megatron of it, as installed; or where libraries of
/// the program are looked for, as in one that embeds the library by find_package(megatron), whose run path names the
/// library's folder. "" where it is in none. Loads nothing.
std::string cuda_plugin();

}  // namespace megatron
