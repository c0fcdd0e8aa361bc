#include "megatron/checkpoint/reshard.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/base/file.h"
#include "megatron/checkpoint/dtypes.h"
#include "megatron/checkpoint/files.h"
#include "megatron/checkpoint/folder.h"
#include "megatron/checkpoint/folder_lock.h"
#include "megatron/checkpoint/reader.h"
#include "megatron/checkpoint/safetensors.h"
#include "megatron/checkpoint/save_plan.h"

namespace megatron::checkpoint {
namespace fs = std::filesystem;
namespace {

constexpr std::int64_t kBytesAtOnce = std::int64_t{4} << 20;

/// The part of a tensor that file `index` of `files` gets: an equal share of its rows; those of one row are the
/// first's.
Box share(const std::vector<std::int64_t>& shape, int index, int files) {
  Box box{std::vector<std::int64_t>(shape.size(), 0), shape};
  if (shape.empty()) {
    if (index > 0) box.shape = {0};
    return box;
  }
  const std::int64_t begin = shape[0] * index / files, end = shape[0] * (index + 1) / files;
  box.offset[0] = begin;
  box.shape[0] = end - begin;
  return box;
}

/// What one file holds.
std::vector<HeldSlice> slices_of_file(const Reader& reader, int index, const ReshardOptions& options) {
  std::vector<HeldSlice> slices;
  for (const auto& [name, record] : reader.manifest().tensors) {
    if (options.weights_only && !is_weight(name)) continue;
    const bool converted = !options.dtype.empty() && is_weight(name);
    if (converted && !converts(record.dtype, options.dtype))
      throw ConfigError(rule_got_fix(concat("\"", name, "\" must be of a dtype that becomes ", options.dtype, "."),
                                     record.dtype, "--dtype fp32, fp64, bf16 or fp16"));
    HeldSlice slice{name, converted ? options.dtype : record.dtype, record.shape,
                    share(record.shape, index, options.files)};
    // Rank 0 also names tensors without elements.
    if (index == 0 || (slice.box.shape.size() == record.shape.size() && slice.box.elements() > 0))
      slices.push_back(std::move(slice));
  }
  return slices;
}

/// Reads a box a few rows, or parts of a row, at a time.
void copy_box(const Reader& reader, const HeldSlice& slice, const Box& box, HashedWriter& file) {
  const auto width = static_cast<std::int64_t>(dtype_bytes(slice.dtype));
  std::size_t d = 0;  // the first dimension that has more than one index
  while (d < box.shape.size() && box.shape[d] == 1) ++d;
  const std::int64_t inner = d < box.shape.size() && box.shape[d] > 0 ? box.elements() / box.shape[d] : 0;
  if (d == box.shape.size() || box.elements() * width <= kBytesAtOnce) {
    const at::Tensor buffer = at::empty(box.shape, dtype_of(slice.dtype));
    reader.read(slice.name, box, buffer);
    return file.write(
        {static_cast<const std::byte*>(buffer.const_data_ptr()), static_cast<std::size_t>(buffer.nbytes())});
  }
  const std::int64_t step = std::max<std::int64_t>(1, kBytesAtOnce / (inner * width));
  for (std::int64_t first = 0; first < box.shape[d]; first += step) {
    Box part = box;
    part.offset[d] += first;
    part.shape[d] = std::min(step, box.shape[d] - first);
    copy_box(reader, slice, part, file);
  }
}

Written write_share(const Reader& reader, const std::vector<HeldSlice>& slices, const std::vector<std::size_t>& writes,
                    const fs::path& path) {
  if (writes.empty()) return {};
  std::string text;
  const SafetensorsHeader header = make_safetensors(entries_of(slices, writes), {{"format", "pt"}}, text);
  HashedWriter file(path, header.file_size());
  file.write(std::as_bytes(std::span(text)));
  for (const std::size_t index : writes) reader.expect(slices[index].name, slices[index].box);
  for (const std::size_t index : writes) copy_box(reader, slices[index], slices[index].box, file);
  Written written{.file = file.finish(), .begins = {}};
  for (const SafetensorsEntry& entry : header.tensors) written.begins.push_back(entry.begin);
  return written;
}

}  // namespace

fs::path reshard(const fs::path& from, const fs::path& to, const ReshardOptions& options) {
  const Reader reader(find_checkpoint(from));
  const std::string name = iteration_name(reader.manifest().iteration);
  if (fs::exists(to / name) && fs::equivalent(to / name, reader.name()))
    throw ConfigError(rule_got_fix("A checkpoint is written anew in another folder.", to.string() + ", its own"));
  if (has_checkpoint(to))
    throw ConfigError(
        rule_got_fix("reshard: the folder written must not hold checkpoints.", to.string(), "name another folder"));
  std::vector<std::vector<HeldSlice>> held;
  for (int index = 0; index < options.files; ++index) held.push_back(slices_of_file(reader, index, options));
  const auto writes = plan_writes(held);

  make_folder(to);
  const FolderLock lock(to, "name another folder");
  prepare_folder(to);
  const fs::path temporary = temporary_folder(to, name);
  fs::create_directory(temporary);
  try {
    std::vector<Written> written;
    for (std::size_t index = 0; index < held.size(); ++index)
      written.push_back(
          write_share(reader, held[index], writes[index], temporary / data_file_name(static_cast<int>(index))));
    Manifest manifest = join_manifest(held, writes, written);
    manifest.iteration = reader.manifest().iteration;
    manifest.metadata = reader.manifest().metadata;
    write_file(temporary / "manifest.json", manifest_text(manifest));
    publish(to, temporary, name);
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(temporary, ignored);
    throw;
  }
  return to / name;
}

}  // namespace megatron::checkpoint
