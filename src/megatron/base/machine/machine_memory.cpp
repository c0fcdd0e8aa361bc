#include "megatron/base/machine/machine_memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <string_view>

#include "megatron/base/error.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;

/// The number after `key` in the first line that begins with it; `key` "": in the first line.
std::optional<std::uint64_t> number_in(const fs::path& path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    const std::size_t begin = line.find_first_not_of(" \t:", key.size());
    if (begin == std::string::npos) return std::nullopt;
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(line.data() + begin, line.data() + line.size(), value);
    if (error != std::errc()) return std::nullopt;  // "max"
    return value;
  }
  return std::nullopt;
}

/// The files of one version of control groups.
struct GroupFiles {
  const char *mount, *limit, *used, *cache;
};
constexpr GroupFiles kVersion2 = {"sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"};
constexpr GroupFiles kVersion1 = {"sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                                  "total_inactive_file"};

/// Takes over what the groups from `group` up to the mount leave, where that is less. Inside of a container the path in
/// /proc may be that of the host: then the mount itself is the process's group.
void bound_by_groups(const fs::path& root, const GroupFiles& files, std::string group, MachineMemory& memory) {
  const fs::path mount = root / files.mount;
  std::error_code ignored;
  if (!fs::exists(mount / fs::path(group).relative_path() / files.limit, ignored)) group = "/";
  for (fs::path path = group;; path = path.parent_path()) {
    const fs::path folder = mount / path.relative_path();
    const auto limit = number_in(folder / files.limit, ""), used = number_in(folder / files.used, "");
    if (limit && used) {
      const std::uint64_t cache = std::min(*used, number_in(folder / "memory.stat", files.cache).value_or(0));
      const std::uint64_t held = *used - cache, left = *limit > held ? *limit - held : 0;
      if (left < memory.bytes)
        memory = {left, concat("the memory limit of the control group, ", *limit, " bytes"),
                  std::min(left, memory.without_swap)};
    }
    if (path == path.parent_path()) return;
  }
}

}  // namespace

std::optional<MachineMemory> machine_memory(const fs::path& root) {
  constexpr std::uint64_t kKilobyte = 1024;
  const auto available = number_in(root / "proc/meminfo", "MemAvailable");
  if (!available) return std::nullopt;
  const std::uint64_t swap = number_in(root / "proc/meminfo", "SwapFree").value_or(0);
  MachineMemory memory{(*available + swap) * kKilobyte, "the memory and swap that are free", *available * kKilobyte};
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "0::/path", or "4:memory:/path" of version 1
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string kinds = "," + line.substr(first + 1, second - first - 1) + ",", path = line.substr(second + 1);
    if (kinds == ",,") bound_by_groups(root, kVersion2, path, memory);
    if (kinds.find(",memory,") != std::string::npos) bound_by_groups(root, kVersion1, path, memory);
  }
  return memory;
}

std::optional<AddressLimit> address_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  const std::uint64_t pages = number_in("/proc/self/statm", "").value_or(0);
  const std::uint64_t used = pages * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  return AddressLimit{.bytes = limit.rlim_cur, .free_bytes = limit.rlim_cur > used ? limit.rlim_cur - used : 0};
}

}  // namespace megatron
