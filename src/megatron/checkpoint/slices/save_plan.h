#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "megatron/checkpoint/files/manifest.h"
#include "megatron/checkpoint/files/safetensors.h"

// Who writes what: decided by rank 0 from what every rank says it holds. No torch here.
namespace megatron::checkpoint {

/// A slice that a rank holds.
struct HeldSlice {
  std::string name, dtype;
  std::vector<std::int64_t> global_shape;
  Box box;

  bool operator==(const HeldSlice&) const = default;
};

std::string to_text(const std::vector<HeldSlice>& slices);
std::vector<HeldSlice> held_slices(const std::string& text);

/// For each rank, which of its slices (indices into held[rank]) it writes: each distinct slice once, by the rank among
/// its holders that has the fewest bytes so far, the largest slices first. Throws std::logic_error where two ranks
/// disagree on the dtype or shape of a tensor.
std::vector<std::vector<std::size_t>> plan_writes(const std::vector<std::vector<HeldSlice>>& held);

/// Those slices as its file names them: a tensor saved whole keeps its name, a part is "name@offset,offset".
std::vector<SafetensorsEntry> entries_of(const std::vector<HeldSlice>& slices, const std::vector<std::size_t>& writes);

/// "rank_00003.safetensors".
std::string data_file_name(int rank);

/// What a rank has written: its file (a size of 0: none), and where each of its planned slices begins in it.
struct Written {
  FileRecord file;
  std::vector<std::uint64_t> begins;
};

std::string to_text(const Written& written);
Written written_slices(const std::string& text);

/// The manifest's files and tensors.
Manifest join_manifest(const std::vector<std::vector<HeldSlice>>& held,
                       const std::vector<std::vector<std::size_t>>& writes, const std::vector<Written>& written);

}  // namespace megatron::checkpoint
