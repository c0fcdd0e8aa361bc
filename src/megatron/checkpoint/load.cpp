#include <algorithm>

#include "megatron/base/error.h"
#include "megatron/base/text/printable.h"
#include "megatron/checkpoint/checkpoint.h"
#include "megatron/checkpoint/files/dtypes.h"
#include "megatron/checkpoint/files/folder.h"
#include "megatron/checkpoint/files/safetensors.h"
#include "megatron/checkpoint/reader.h"
#include "megatron/checkpoint/slices/read_plan.h"
#include "megatron/kernels/matmul.h"

namespace megatron::checkpoint {
namespace fs = std::filesystem;
namespace {

constexpr const char* kOtherModel = "give the run the model options the checkpoint was written with";

Box box_of(const ShardedTensor& tensor) { return {tensor.offset, tensor.data.sizes().vec()}; }

void check(const Reader& reader, const ShardedTensor& tensor) {
  const TensorRecord* const record = reader.find(tensor.name);
  const std::string manifest = reader.name() + "/manifest.json";
  if (record == nullptr)
    throw ConfigError(rule_got_fix(concat(manifest, ": must hold the tensor \"", tensor.name, "\"."),
                                   concat(reader.manifest().tensors.size(), " others"), kOtherModel));
  const std::string dtype = dtype_name(tensor.data.scalar_type());
  if (record->shape != tensor.global_shape || !converts(record->dtype, dtype))
    throw ConfigError(rule_got_fix(
        concat(manifest, ": \"", tensor.name, "\" must be ", dtype, " ", shape_text(tensor.global_shape), "."),
        concat(record->dtype, " ", shape_text(record->shape)), kOtherModel));
  if (!inside(box_of(tensor), record->shape))
    throw std::logic_error(concat("a slice that lies outside of \"", tensor.name, "\""));
}

/// What is wrong with one file of a checkpoint; reads all of it.
void verify_file(const fs::path& folder, const Manifest& manifest, std::size_t index) {
  CheckedReader file(folder, manifest.files[index]);
  std::vector<std::byte> block(kBlockBytes);
  file.expect(0, file.size());
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
        throw Damage(rule_got_fix(concat(file.name(), ": must hold a slice of \"", printable(name), "\" at byte ",
                                         slice.begin, ", as the manifest says."),
                                  "a header that does not say so", kLoadAnother));
    }
  }
}

}  // namespace

Loaded load(const fs::path& folder, const std::vector<ShardedTensor>& tensors) {
  const Reader reader(find_checkpoint(folder));
  std::vector<WantedSlice> wanted;
  for (const ShardedTensor& tensor : tensors) {
    check(reader, tensor);
    wanted.push_back({reader.find(tensor.name), box_of(tensor)});
  }
  const ReadPlan plan = plan_reads(reader.manifest(), wanted);
  reader.expect(plan);
  for (const std::size_t index : plan.order) {
    const ShardedTensor& tensor = tensors[index];
    reader.read(tensor.name, wanted[index].box, tensor.data);
    kernels::written_to(tensor.data);  // through its pointer
  }
  return {.iteration = reader.manifest().iteration,
          .metadata = reader.manifest().metadata,
          .bytes_read = reader.bytes_read()};
}

namespace {

/// What is wrong with the checkpoint meant by `folder`, which is noted in `verified` as far as it is known.
std::vector<std::string> problems_of(const fs::path& folder, Verified& verified) {
  std::vector<std::string> problems;
  try {
    verified.folder = find_checkpoint(folder);
    verified.manifest = read_manifest(verified.folder);
    const fs::path& found = verified.folder;
    const Manifest& manifest = verified.manifest;
    check_whole(found, manifest);
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

/// Which checkpoint `folder` means now, and which manifest that has: two that differ say that somebody writes there.
std::string view_of(const fs::path& folder) {
  try {
    const fs::path found = find_checkpoint(folder);
    return concat(found.string(), ": ", fingerprint(found));
  } catch (const std::exception& e) {
    return e.what();
  }
}

/// How often a checkpoint that a run removes is looked for again: one that prunes faster is not waited for.
int attempts_at(const fs::path& folder) {
  const bool is_one = is_iteration_folder(folder) || fs::exists(folder / "manifest.json");
  return is_one ? 1 : 10;
}

[[noreturn]] void throw_removed(const fs::path& folder) {
  throw std::runtime_error(rule_got_fix("A checkpoint must stay while it is read.",
                                        concat(folder.string(),
                                               ", which was removed or replaced meanwhile: a run keeps the newest "
                                               "checkpoint.keep_last"),
                                        "name the run's folder, whose newest checkpoint stays"));
}

}  // namespace

void read_newest(const fs::path& folder, const std::function<void()>& read) {
  for (int left = attempts_at(folder);;) {
    const std::string before = view_of(folder);
    try {
      return read();
    } catch (const std::exception&) {
      if (view_of(folder) == before) throw;
    }
    if (--left == 0) throw_removed(folder);
  }
}

std::vector<std::string> verify(const fs::path& folder, Verified* verified) {
  for (int left = attempts_at(folder);;) {
    const std::string before = view_of(folder);
    Verified seen;
    std::vector<std::string> problems = problems_of(folder, seen);
    const fs::path found = seen.folder;
    if (verified != nullptr) *verified = std::move(seen);
    const bool changed = !problems.empty() && view_of(folder) != before;
    if (!changed) return problems;
    if (--left == 0) throw_removed(found.empty() ? folder : found);
  }
}

}  // namespace megatron::checkpoint
