#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

// Reading a checkpoint's files so that what the system cannot do now (too many open files, a disk that does not answer)
// is never taken for damage: a run falls back to an older checkpoint because of damage alone. No torch here.
namespace megatron::checkpoint {

/// A descriptor of the file, which the caller closes. Throws Damage where there is no such file or it is no regular one
/// (a pipe would be waited for), std::runtime_error where the system cannot open it.
int open_to_read(const std::filesystem::path& path);

/// Reads from byte `offset` on; fewer bytes than asked for where the file ends, and returns how many. Throws
/// std::runtime_error, which names `path`, where the system cannot read.
std::size_t read_at(int descriptor, std::uint64_t offset, std::span<std::byte> into, const std::filesystem::path& path);

}  // namespace megatron::checkpoint
