#include "megatron/checkpoint/reshard.h"

#include <utility>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/base/text/printable.h"
#include "megatron/checkpoint/files/dtypes.h"
#include "megatron/checkpoint/files/folder.h"
#include "megatron/checkpoint/files/folder_lock.h"
#include "megatron/checkpoint/files/safetensors.h"
#include "megatron/checkpoint/reader.h"
#include "megatron/checkpoint/save/streamed.h"
#include "megatron/checkpoint/slices/save_plan.h"

namespace megatron::checkpoint {
namespace fs = std::filesystem;
namespace {

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
      throw ConfigError(
          rule_got_fix(concat("\"", printable(name), "\" must be of a dtype that becomes ", options.dtype, "."),
                       record.dtype, "--dtype fp32, fp64, bf16 or fp16"));
    HeldSlice slice{name, converted ? options.dtype : record.dtype, record.shape,
                    share(record.shape, index, options.files)};
    // Rank 0 also names tensors without elements.
    if (index == 0 || (slice.box.shape.size() == record.shape.size() && slice.box.elements() > 0))
      slices.push_back(std::move(slice));
  }
  return slices;
}

/// The tensors of a checkpoint.
class CheckpointStream final : public TensorStream {
 public:
  explicit CheckpointStream(const Reader& reader) : reader_(reader) {}
  void expect(const HeldSlice& slice) const override { reader_.expect(slice.name, slice.box); }
  void read(const HeldSlice& slice, const Box& box, const at::Tensor& into) const override {
    reader_.read(slice.name, box, into);
  }

 private:
  const Reader& reader_;
};

}  // namespace

fs::path reshard(const fs::path& from, const fs::path& to, const ReshardOptions& options) {
  const Reader reader(find_checkpoint(from));
  check_new_folder(to, "checkpoint reshard");
  std::vector<std::vector<HeldSlice>> held;
  for (int index = 0; index < options.files; ++index) held.push_back(slices_of_file(reader, index, options));

  make_folder(to);
  const FolderLock lock(to, "name another folder");
  return save_streamed(to, reader.manifest().iteration, reader.manifest().metadata, held, CheckpointStream(reader));
}

}  // namespace megatron::checkpoint
