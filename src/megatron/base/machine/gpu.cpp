#include "megatron/base/machine/gpu.h"

#include <dlfcn.h>

#include <cstddef>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

namespace megatron {
namespace {

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
    if (std::filesystem::exists(place / kCudaPlugin, error)) return (place / kCudaPlugin).string();
  return "";
}

}  // namespace megatron
