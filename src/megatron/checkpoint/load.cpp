#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <memory>

#include "megatron/base/error.h"
#include "megatron/checkpoint/checkpoint.h"
#include "megatron/checkpoint/dtypes.h"
#include "megatron/checkpoint/files.h"
#include "megatron/checkpoint/folder.h"
#include "megatron/checkpoint/safetensors.h"

namespace megatron::checkpoint {
namespace fs = std::filesystem;
namespace {

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (std::size_t d = 0; d < shape.size(); ++d) text += concat(d == 0 ? "" : ", ", shape[d]);
  return text + "]";
}

/// Fills tensors from one checkpoint; opens its files when they are first needed.
class Loader {
 public:
  explicit Loader(fs::path folder)
      : folder_(std::move(folder)), manifest_(read_manifest(folder_)), files_(manifest_.files.size()) {}

  void fill(const ShardedTensor& tensor) {
    const TensorRecord& record = find(tensor);
    const Box wanted{tensor.offset, tensor.data.sizes().vec()};
    if (!inside(wanted, record.shape))
      throw std::logic_error(concat("a slice that lies outside of \"", tensor.name, "\""));
    const bool in_place = tensor.data.is_cpu() && tensor.data.is_contiguous();
    const at::Tensor buffer = in_place ? tensor.data : at::empty(wanted.shape, tensor.data.options().device(at::kCPU));
    std::byte* bytes = static_cast<std::byte*>(buffer.data_ptr());
    const std::int64_t width = static_cast<std::int64_t>(dtype_bytes(record.dtype));
    for (const SliceRecord& slice : record.slices) {
      for_each_shared_run(slice.box, wanted, [&](std::int64_t from, std::int64_t to, std::int64_t count) {
        file(slice.file)
            .read(slice.begin + static_cast<std::uint64_t>(from * width),
                  {bytes + to * width, static_cast<std::size_t>(count * width)});
      });
    }
    if (!in_place) tensor.data.detach().copy_(buffer);
  }

  const Manifest& manifest() const { return manifest_; }

 private:
  const TensorRecord& find(const ShardedTensor& tensor) const {
    const auto found = manifest_.tensors.find(tensor.name);
    if (found == manifest_.tensors.end())
      throw ConfigError(rule_got_fix(concat(path(), ": must hold the tensor \"", tensor.name, "\"."),
                                     concat(manifest_.tensors.size(), " others"),
                                     "give the run the model options the checkpoint was written with"));
    const TensorRecord& record = found->second;
    const std::string dtype = dtype_name(tensor.data.scalar_type());
    if (record.shape != tensor.global_shape || record.dtype != dtype)
      throw ConfigError(rule_got_fix(
          concat(path(), ": \"", tensor.name, "\" must be ", dtype, " ", shape_text(tensor.global_shape), "."),
          concat(record.dtype, " ", shape_text(record.shape)),
          "give the run the model options the checkpoint was written with"));
    return record;
  }

  CheckedReader& file(std::size_t index) {
    if (!files_[index]) files_[index] = std::make_unique<CheckedReader>(folder_, manifest_.files[index]);
    return *files_[index];
  }

  std::string path() const { return (folder_ / "manifest.json").string(); }

  fs::path folder_;
  Manifest manifest_;
  std::vector<std::unique_ptr<CheckedReader>> files_;
};

/// What is wrong with one file of a checkpoint; reads all of it.
void verify_file(const fs::path& folder, const Manifest& manifest, std::size_t index) {
  CheckedReader file(folder, manifest.files[index]);
  std::vector<std::byte> block(kBlockBytes);
  for (std::uint64_t offset = 0; offset < file.size(); offset += kBlockBytes)
    file.read(offset, std::span(block).first(std::min(kBlockBytes, file.size() - offset)));

  const ReadAt read = [&](std::uint64_t offset, std::span<std::byte> into) { file.read(offset, into); };
  std::map<std::uint64_t, SafetensorsEntry> entries;
  for (SafetensorsEntry& entry : read_safetensors(read, file.size(), file.name()).tensors)
    entries[entry.begin] = std::move(entry);
  for (const auto& [name, tensor] : manifest.tensors) {
    for (const SliceRecord& slice : tensor.slices) {
      if (slice.file != index) continue;
      const auto entry = entries.find(slice.begin);
      if (entry == entries.end() || entry->second.dtype != tensor.dtype || entry->second.shape != slice.box.shape)
        throw ConfigError(rule_got_fix(concat(file.name(), ": must hold a slice of \"", name, "\" at byte ",
                                              slice.begin, ", as the manifest says."),
                                       "a header that does not say so"));
    }
  }
}

}  // namespace

Loaded load(const fs::path& folder, const std::vector<ShardedTensor>& tensors) {
  const c10::NoGradGuard no_grad;
  Loader loader(find_checkpoint(folder));
  for (const ShardedTensor& tensor : tensors) loader.fill(tensor);
  return {.iteration = loader.manifest().iteration, .metadata = loader.manifest().metadata};
}

std::vector<std::string> verify(const fs::path& folder) {
  std::vector<std::string> problems;
  try {
    const fs::path found = find_checkpoint(folder);
    const Manifest manifest = read_manifest(found);
    for (std::size_t index = 0; index < manifest.files.size(); ++index) {
      try {
        verify_file(found, manifest, index);
      } catch (const std::exception& e) {
        problems.emplace_back(e.what());
      }
    }
  } catch (const std::exception& e) {
    problems.emplace_back(e.what());
  }
  return problems;
}

}  // namespace megatron::checkpoint
