#include "megatron/base/machine/gpu.h"

#include <dlfcn.h>

#include <cstddef>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "megatron/base/error.h"

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
  if (std::filesystem::exists("/dev/dxg", ignored)) return true;  // of Windows' subsystem for Linux
  if (!std::filesystem::exists("/dev/nvidiactl", ignored)) return false;
  for (const auto& entry : std::filesystem::directory_iterator("/dev", ignored)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("nvidia") && name.size() > 6 && name.find_first_not_of("0123456789", 6) == std::string::npos)
      return true;  // a container may have been given number 3 alone
  }
  return false;
}

int gpu_of_rank(const VisibleGpus& gpus, int local_rank, int local_size) {
  if (gpus.count >= local_size && local_rank < gpus.count) return local_rank;
  if (gpus.count == 1 && gpus.named && gpus.named->find(',') == std::string::npos) return 0;
  throw ConfigError(rule_got_fix(
      "--device cuda needs a GPU for each rank of a machine.",
      concat(local_size, local_size == 1 ? " rank and " : " ranks and ", gpus.count, gpus.count == 1 ? " GPU" : " GPUs",
             gpus.named ? concat(" (CUDA_VISIBLE_DEVICES=", *gpus.named, ")") : std::string(), " on this machine"),
      gpus.count == 0 ? "--device cpu" : concat("start ", gpus.count, " ranks on it, or use --device cpu")));
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
