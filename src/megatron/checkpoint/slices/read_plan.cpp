#include "megatron/checkpoint/slices/read_plan.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "megatron/checkpoint/files/safetensors.h"

namespace megatron::checkpoint {
namespace {

using FileOffset = std::pair<std::size_t, std::uint64_t>;  // file, byte

/// Calls run(file, first byte, bytes) for what the slice takes from each stored slice, in ascending order.
template <class Run>
void for_each_stored_run(const WantedSlice& wanted, Run run) {
  const std::uint64_t bytes = dtype_bytes(wanted.tensor->dtype);
  for (const SliceRecord& slice : wanted.tensor->slices)
    for_each_shared_run(slice.box, wanted.box, [&](std::int64_t from, std::int64_t, std::int64_t count) {
      run(slice.file, slice.begin + static_cast<std::uint64_t>(from) * bytes,
          static_cast<std::uint64_t>(count) * bytes);
    });
}

/// Where the first stored slice that the wanted one takes from lies.
FileOffset first_place(const WantedSlice& wanted) {
  FileOffset first{std::numeric_limits<std::size_t>::max(), 0};
  for (const SliceRecord& slice : wanted.tensor->slices)
    if (overlap(slice.box, wanted.box)) first = std::min(first, FileOffset{slice.file, slice.begin});
  return first;
}

}  // namespace

std::uint64_t block_bytes(const FileRecord& file, std::uint64_t block) {
  return std::min(kBlockBytes, file.size - block * kBlockBytes);
}

ReadPlan plan_reads(const Manifest& manifest, const std::vector<WantedSlice>& wanted) {
  ReadPlan plan;
  std::vector<FileOffset> places;
  for (const WantedSlice& slice : wanted) places.push_back(first_place(slice));
  plan.order.resize(wanted.size());
  std::iota(plan.order.begin(), plan.order.end(), std::size_t{0});
  std::stable_sort(plan.order.begin(), plan.order.end(),
                   [&](std::size_t a, std::size_t b) { return places[a] < places[b]; });

  std::vector<std::uint64_t> held(manifest.files.size(), std::numeric_limits<std::uint64_t>::max());  // block, by file
  const auto add = [&](std::size_t file, std::uint64_t first, std::uint64_t end) {
    if (first < end && first == held[file]) ++first;
    if (first >= end) return;
    held[file] = end - 1;
    if (!plan.blocks.empty() && plan.blocks.back().file == file && plan.blocks.back().end == first)
      plan.blocks.back().end = end;
    else
      plan.blocks.push_back({file, first, end});
    plan.read_bytes += (end - first - 1) * kBlockBytes + block_bytes(manifest.files[file], end - 1);
  };
  for (const std::size_t index : plan.order)
    for_each_stored_run(wanted[index], [&](std::size_t file, std::uint64_t begin, std::uint64_t bytes) {
      plan.needed_bytes += bytes;
      if (bytes > 0) add(file, begin / kBlockBytes, (begin + bytes - 1) / kBlockBytes + 1);
    });
  return plan;
}

}  // namespace megatron::checkpoint
