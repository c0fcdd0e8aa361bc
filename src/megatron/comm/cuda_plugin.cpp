#include "megatron/comm/cuda_plugin.h"

#include <dlfcn.h>

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "megatron/base/error.h"

namespace megatron::comm {
namespace {

constexpr const char* kName = "libmegatron_cuda.so";
constexpr const char* kNeedsGpu = "--device cuda and --backend nccl need an NVIDIA GPU and the CUDA plugin.";

/// The folders in which dlopen looks for a library of this program: its run path, then the system's.
std::vector<std::filesystem::path> library_folders() {
  std::vector<std::filesystem::path> folders;
  const std::unique_ptr<void, int (*)(void*)> program(dlopen(nullptr, RTLD_LAZY), dlclose);
  Dl_serinfo size;
  if (!program || dlinfo(program.get(), RTLD_DI_SERINFOSIZE, &size) != 0) return folders;
  std::vector<std::max_align_t> buffer(size.dls_size / sizeof(std::max_align_t) + 1);
  auto* const info = reinterpret_cast<Dl_serinfo*>(buffer.data());
  info->dls_size = size.dls_size;
  info->dls_cnt = size.dls_cnt;
  if (dlinfo(program.get(), RTLD_DI_SERINFO, info) != 0) return folders;
  const Dl_serpath* const paths = info->dls_serpath;
  for (unsigned i = 0; i < info->dls_cnt; ++i) folders.emplace_back(paths[i].dls_name);
  return folders;
}

void* open_plugin() {
  const std::string found = cuda_plugin();
  void* plugin = dlopen(found.empty() ? kName : found.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (plugin != nullptr) return plugin;
  const std::string why = dlerror();
  const bool missing = found.empty() && why.starts_with(kName);  // else a library that it needs is
  throw ConfigError(rule_got_fix(
      kNeedsGpu, why,
      missing ? "build on a machine with nvcc (the configure step says why it was left out), or use --device cpu"
              : "run `make setup` on the machine with the GPU, or use --device cpu"));
}

}  // namespace

bool gpu_present() {
  std::error_code ignored;
  return std::filesystem::exists("/dev/nvidia0", ignored) && std::filesystem::exists("/dev/nvidiactl", ignored);
}

std::string cuda_plugin() {
  std::error_code error;
  const auto folder = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  std::vector<std::filesystem::path> places = {folder, folder.parent_path() / "lib/megatron"};
  for (auto& other : library_folders()) places.push_back(std::move(other));
  for (const auto& place : places)
    if (std::filesystem::exists(place / kName, error)) return (place / kName).string();
  return "";
}

void load_cuda_plugin() {
  if (!gpu_present()) {
    const std::string plugin = cuda_plugin();
    throw ConfigError(rule_got_fix(
        kNeedsGpu,
        concat("no /dev/nvidia0 on this machine; ", plugin.empty() ? "and no plugin" : "the plugin is " + plugin),
        "use --device cpu"));
  }
  open_plugin();
}

void* cuda_plugin_entry(const char* name) {
  void* const entry = dlsym(open_plugin(), name);
  if (entry == nullptr)
    throw ConfigError(rule_got_fix(kNeedsGpu, dlerror(), "build the plugin and the program from one source"));
  return entry;
}

Group join_nccl(const LaunchedRank& place, std::chrono::milliseconds timeout) {
  load_cuda_plugin();
  using Make = Backend* (*)(const LaunchedRank*, std::int64_t);
  const auto make = reinterpret_cast<Make>(cuda_plugin_entry("megatron_make_nccl_backend"));
  return Group(std::shared_ptr<Backend>(make(&place, timeout.count())));
}

}  // namespace megatron::comm
