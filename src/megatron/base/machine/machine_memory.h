#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace megatron {

/// Memory that this process and those it starts can still take.
struct MachineMemory {
  std::uint64_t bytes = 0;
  std::string limit;  ///< what bounds it: "free memory and swap", "the limit of the control group …"
  std::uint64_t without_swap = 0;
};

/// The least of: what the system has free or can make free (MemAvailable) and free swap; what each control group of
/// this process (version 1 or 2) leaves under its limit, its file cache not counted. Nothing where the system does not
/// tell. `root`: where /proc and /sys lie (tests).
std::optional<MachineMemory> machine_memory(const std::filesystem::path& root = "/");

/// The limit of this process's addresses (ulimit -v), and what it leaves, in bytes.
struct AddressLimit {
  std::uint64_t bytes = 0, free_bytes = 0;
};
/// Nothing where there is no limit.
std::optional<AddressLimit> address_limit();

}  // namespace megatron
