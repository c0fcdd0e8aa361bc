#include "megatron/checkpoint/save/streamed.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>

#include "megatron/base/files/file.h"
#include "megatron/checkpoint/files/dtypes.h"
#include "megatron/checkpoint/files/files.h"
#include "megatron/checkpoint/files/folder.h"
#include "megatron/checkpoint/files/manifest.h"
#include "megatron/checkpoint/files/safetensors.h"

namespace megatron::checkpoint {
namespace fs = std::filesystem;
namespace {

constexpr std::int64_t kBytesAtOnce = std::int64_t{4} << 20;

/// Reads a box a few rows, or parts of a row, at a time.
void copy_box(const TensorStream& stream, const HeldSlice& slice, const Box& box, HashedWriter& file) {
  const auto width = static_cast<std::int64_t>(dtype_bytes(slice.dtype));
  std::size_t d = 0;  // the first dimension that has more than one index
  while (d < box.shape.size() && box.shape[d] == 1) ++d;
  const std::int64_t inner = d < box.shape.size() && box.shape[d] > 0 ? box.elements() / box.shape[d] : 0;
  if (d == box.shape.size() || box.elements() * width <= kBytesAtOnce) {
    const at::Tensor buffer = at::empty(box.shape, dtype_of(slice.dtype));
    stream.read(slice, box, buffer);
    return file.write(
        {static_cast<const std::byte*>(buffer.const_data_ptr()), static_cast<std::size_t>(buffer.nbytes())});
  }
  const std::int64_t step = std::max<std::int64_t>(1, kBytesAtOnce / (inner * width));
  for (std::int64_t first = 0; first < box.shape[d]; first += step) {
    Box part = box;
    part.offset[d] += first;
    part.shape[d] = std::min(step, box.shape[d] - first);
    copy_box(stream, slice, part, file);
  }
}

Written write_file_of(const TensorStream& stream, const std::vector<HeldSlice>& slices,
                      const std::vector<std::size_t>& writes, const fs::path& path) {
  if (writes.empty()) return {};
  std::string text;
  const SafetensorsHeader header = make_safetensors(entries_of(slices, writes), {{"format", "pt"}}, text);
  HashedWriter file(path, header.file_size());
  file.write(std::as_bytes(std::span(text)));
  for (const std::size_t index : writes) stream.expect(slices[index]);
  for (const std::size_t index : writes) copy_box(stream, slices[index], slices[index].box, file);
  Written written{.file = file.finish(), .begins = {}};
  for (const SafetensorsEntry& entry : header.tensors) written.begins.push_back(entry.begin);
  return written;
}

}  // namespace

fs::path save_streamed(const fs::path& folder, std::int64_t iteration, const Metadata& metadata,
                       const std::vector<std::vector<HeldSlice>>& held, const TensorStream& stream) {
  const auto writes = plan_writes(held);
  const std::string name = iteration_name(iteration);
  prepare_folder(folder);
  const fs::path temporary = temporary_folder(folder, name);
  fs::create_directory(temporary);
  try {
    std::vector<Written> written;
    for (std::size_t index = 0; index < held.size(); ++index)
      written.push_back(
          write_file_of(stream, held[index], writes[index], temporary / data_file_name(static_cast<int>(index))));
    Manifest manifest = join_manifest(held, writes, written);
    manifest.iteration = iteration;
    manifest.metadata = metadata;
    write_file(temporary / "manifest.json", manifest_text(manifest));
    publish(folder, temporary, name);
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(temporary, ignored);
    throw;
  }
  return folder / name;
}

}  // namespace megatron::checkpoint
