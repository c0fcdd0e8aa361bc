#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/base/files/atomic_folder.h"
#include "megatron/base/files/file.h"
#include "megatron/base/text/format.h"
#include "megatron/checkpoint/files/dtypes.h"
#include "megatron/checkpoint/files/safetensors.h"
#include "megatron/families/hf_family.h"
#include "megatron/interchange/hugging_face/companions.h"
#include "megatron/interchange/hugging_face/fused_experts.h"
#include "megatron/interchange/hugging_face/hugging_face.h"
#include "megatron/interchange/mapped_source.h"
#include "megatron/interchange/stored_tensor.h"

namespace megatron::interchange {
namespace fs = std::filesystem;
namespace {

using nlohmann::json;

/// What config.json calls a dtype.
std::string config_name(at::ScalarType type) {
  if (type == at::kDouble) return "float64";
  if (type == at::kHalf) return "float16";
  return type == at::kBFloat16 ? "bfloat16" : "float32";
}

class FolderWriter {
 public:
  FolderWriter(const checkpoint::WeightSource& theirs, const ExportOptions& options)
      : theirs_(theirs), options_(options) {
    for (const std::string& name : theirs.tensors()) {
      const at::ScalarType type =
          scalar_type(options.dtype.empty() ? theirs.dtype(name) : options.dtype, "export: dtype");
      entries_.push_back({.name = name, .dtype = checkpoint::dtype_name(type), .shape = *theirs.shape(name)});
      if (entries_.size() == 1) dtype_ = config_name(type);
    }
  }

  /// What config.json calls the dtype of the first tensor.
  const std::string& dtype() const { return dtype_; }

  void write(const fs::path& folder) const {
    const auto shards = split();
    json weight_map = json::object();
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < shards.size(); ++i) {
      const std::string name = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
      total += write_shard(folder / (shards.size() == 1 ? "model.safetensors" : name), shards[i]);
      for (const auto& entry : shards[i]) weight_map[entry.name] = name;
    }
    if (shards.size() > 1)
      write_file(folder / "model.safetensors.index.json",
                 json({{"metadata", {{"total_size", total}}}, {"weight_map", weight_map}}).dump(2) + "\n");
  }

 private:
  using Entries = std::vector<checkpoint::SafetensorsEntry>;

  static std::uint64_t bytes_of(const checkpoint::SafetensorsEntry& entry) {
    return checkpoint::shape_elements(entry.shape, entry.name) * checkpoint::dtype_bytes(entry.dtype);
  }

  std::vector<Entries> split() const {
    std::vector<Entries> shards(1);
    std::uint64_t size = 0;
    for (const auto& entry : entries_) {
      if (size > 0 && size + bytes_of(entry) > options_.shard_bytes) {
        shards.emplace_back();
        size = 0;
      }
      size += bytes_of(entry);
      shards.back().push_back(entry);
    }
    return shards;
  }

  std::uint64_t write_shard(const fs::path& path, const Entries& entries) const {
    std::string header;
    const auto placed = checkpoint::make_safetensors(entries, {{"format", "pt"}}, header);
    AtomicFile file(path);
    file.write(header);
    for (const auto& entry : placed.tensors) {
      const at::Tensor tensor = at::empty(entry.shape, scalar_type(entry.dtype, entry.name));
      theirs_.read(entry.name, {std::vector<std::int64_t>(entry.shape.size(), 0), entry.shape}, tensor);
      file.write({static_cast<const std::byte*>(tensor.const_data_ptr()), static_cast<std::size_t>(tensor.nbytes())});
    }
    file.commit();
    return placed.file_size() - placed.data_begin;
  }

  const checkpoint::WeightSource& theirs_;
  const ExportOptions& options_;
  Entries entries_;
  std::string dtype_;
};

}  // namespace

void export_hugging_face(const checkpoint::WeightSource& weights, const families::FolderConfig& config,
                         const fs::path& folder, const ExportOptions& options) {
  AtomicFolder::check(folder);
  const families::HfFamily& family = config.family != nullptr ? *config.family : families::family_of(config.model);
  const auto has = [](const checkpoint::WeightSource& source) {
    return [&source](const std::string& name) { return source.shape(name) != nullptr; };
  };
  families::Mapping names = families::inverted(family.written_table(families::shape_of(config.model), has(weights)));
  if (family.copies != nullptr) names.merge(family.copies(families::shape_of(config.model)));
  const MappedSource theirs = all_under(weights, std::move(names));
  const std::unique_ptr<const checkpoint::WeightSource> fused = family.fuses_experts ? fused_experts(theirs) : nullptr;
  const FolderWriter writer(fused ? *fused : theirs, options);

  AtomicFolder output(folder);
  const fs::path& place = output.temporary_path();
  write_file(place / "config.json", families::config_json(config, writer.dtype(), has(theirs)));
  writer.write(place);
  if (!options.tokenizer.empty()) copy_companions(options.tokenizer, place);
  output.commit();
}

}  // namespace megatron::interchange
