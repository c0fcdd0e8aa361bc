#pragma once
#include <chrono>
#include <string>

#include "megatron/comm/group.h"
#include "megatron/comm/processes/environment.h"
#include "megatron/comm/processes/presence.h"

// Everything that needs CUDA lives in libmegatron_cuda.so, which is loaded here and linked nowhere.
namespace megatron::comm {

/// What the plugin, which is loaded if it was not, exports as `name`. Throws ConfigError as load_cuda_plugin(), and
/// where there is no such name. `library`: another path than cuda_plugin().
void* cuda_plugin_entry(const char* name, const std::string& library = "");

/// Loads the plugin (once; later calls cost nothing): that of cuda_plugin(). After it ATen runs on CUDA. Throws
/// ConfigError with what to do when there is no plugin, a library that it needs is missing, or no GPU; std::logic_error
/// where something asked ATen for CUDA before: that answer, none, holds for the process.
void load_cuda_plugin();
/// Loads the library at `path` as the plugin, whether or not there is a GPU; throws as load_cuda_plugin().
void load_cuda_library(const std::string& path);
/// GPUs that this process sees. After load_cuda_plugin().
int num_cuda_devices();

/// Joins the world that `place` describes over NCCL, on GPU number `gpu` (gpu_of_rank()): like join_gloo, with tensors
/// on that GPU. wait() orders the current stream after the collective; it does not stop the host. A rank that is
/// missing is found by a watching thread, which ends the communication; the next call on any group of this rank throws
/// PeerError.
Group join_nccl(const LaunchedRank& place, int gpu, std::chrono::milliseconds timeout, const PeerCheck& check = {});

}  // namespace megatron::comm
