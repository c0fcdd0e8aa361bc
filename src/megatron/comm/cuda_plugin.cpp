#include "megatron/comm/cuda_plugin.h"

#include <ATen/Context.h>
#include <dlfcn.h>

#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/base/machine/gpu.h"

namespace megatron::comm {
namespace {

constexpr const char* kNeedsGpu = "--device cuda and --backend nccl need an NVIDIA GPU and the CUDA plugin.";

void* open_library(const std::string& path) {
  void* plugin = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (plugin != nullptr) return plugin;
  const std::string why = dlerror();
  const bool missing = path == kCudaPlugin && why.starts_with(kCudaPlugin);  // else a library that it needs is
  throw ConfigError(rule_got_fix(
      kNeedsGpu, why,
      missing ? "build on a machine with nvcc (the configure step says why it was left out), or use --device cpu"
              : "run `make setup` on the machine with the GPU, or use --device cpu"));
}

std::string plugin_path() {
  const std::string found = cuda_plugin();
  return found.empty() ? kCudaPlugin : found;
}

}  // namespace

void load_cuda_library(const std::string& path) {
  open_library(path);
  if (at::hasCUDA()) return;
  if (at::detail::getCUDAHooks().hasCUDART())
    throw ConfigError(rule_got_fix(kNeedsGpu, "the driver shows this process no GPU",
                                   "see `nvidia-smi` and CUDA_VISIBLE_DEVICES, or use --device cpu"));
  throw std::logic_error("ATen was asked for CUDA before " + path + " was loaded, and has none for this process");
}

int num_cuda_devices() { return at::detail::getCUDAHooks().deviceCount(); }

void load_cuda_plugin() {
  if (!gpu_present()) {
    const std::string plugin = cuda_plugin();
    throw ConfigError(rule_got_fix(
        kNeedsGpu,
        concat("no /dev/nvidia* on this machine; ", plugin.empty() ? "and no plugin" : "the plugin is " + plugin),
        "use --device cpu"));
  }
  load_cuda_library(plugin_path());
}

void* cuda_plugin_entry(const char* name, const std::string& library) {
  void* const entry = dlsym(open_library(library.empty() ? plugin_path() : library), name);
  if (entry == nullptr)
    throw ConfigError(rule_got_fix(kNeedsGpu, dlerror(), "build the plugin and the program from one source"));
  return entry;
}

Group join_nccl(const LaunchedRank& place, int gpu, std::chrono::milliseconds timeout, const PeerCheck& check) {
  load_cuda_plugin();
  using Make = Backend* (*)(const LaunchedRank*, int, std::int64_t, const PeerCheck*);
  const auto make = reinterpret_cast<Make>(cuda_plugin_entry("megatron_make_nccl_backend"));
  return Group(std::shared_ptr<Backend>(make(&place, gpu, timeout.count(), &check)));
}

}  // namespace megatron::comm
