#pragma once
#include <cstddef>
#include <filesystem>

// What is said when a mapped file is cut off by somebody while the program reads it. The system then sends SIGBUS,
// which without a handler ends the program without a word.
namespace megatron {

/// Notes that [address, address + size) is a mapping of `path`; until forget_mapping(). From any thread.
void note_mapping(const void* address, std::size_t size, const std::filesystem::path& path);
void forget_mapping(const void* address);

/// From now on a fault in a mapping that was noted ends the process with exit code 1 and a message that names the file
/// and its sizes. Called once, by main(). Faults elsewhere keep their default: a core dump.
void explain_mapped_faults();

}  // namespace megatron
