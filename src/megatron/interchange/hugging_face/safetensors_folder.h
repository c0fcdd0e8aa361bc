#pragma once
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "megatron/base/files/file.h"
#include "megatron/checkpoint/files/safetensors.h"
#include "megatron/checkpoint/weights.h"

namespace megatron::interchange {

/// The names of model.safetensors.index.json: tensor -> file. Throws ConfigError for anything but names of files in the
/// folder. `file`: what messages call it.
std::map<std::string, std::string> parse_index(std::string_view json, const std::string& file);

/// The tensors of a folder with model.safetensors, or with shards and their index, under the names they have there.
class SafetensorsFolder : public checkpoint::WeightSource {
 public:
  /// Maps the files and checks their headers and the index. Throws ConfigError naming the file.
  /// `single`: the file that holds them all, where there is no index.
  explicit SafetensorsFolder(const std::filesystem::path& folder, const std::string& single = "model.safetensors");

  std::string name() const override { return folder_.string(); }
  std::vector<std::string> tensors() const override;
  const std::vector<std::int64_t>* shape(const std::string& tensor) const override;
  std::string dtype(const std::string& tensor) const override;
  void read(const std::string& tensor, const checkpoint::Box& box, const at::Tensor& into) const override;

 private:
  struct TensorLocation {
    std::size_t file = 0;
    checkpoint::SafetensorsEntry entry;
  };
  void add_file(const std::string& name);

  std::filesystem::path folder_;
  std::vector<MappedFile> files_;
  std::map<std::string, TensorLocation> places_;
};

}  // namespace megatron::interchange
