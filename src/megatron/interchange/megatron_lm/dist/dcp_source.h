#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "megatron/base/files/file.h"
#include "megatron/checkpoint/weights.h"
#include "megatron/interchange/megatron_lm/dist/dcp_metadata.h"
#include "megatron/interchange/megatron_lm/torch_file.h"
#include "megatron/plan/parameters/parameters.h"

namespace megatron::interchange {

/// A folder of torch.distributed.checkpoint, its index read. Opens files when they are needed.
class DcpFolder {
 public:
  explicit DcpFolder(std::filesystem::path folder);

  const DcpMetadata& metadata() const { return metadata_; }
  std::string name() const { return folder_.string(); }
  const DcpTensor* find(const std::string& tensor) const;
  /// An archive of torch.save in one of its files. Throws ConfigError where it does not lie there, or is none.
  TorchFile open(const DcpPlace& place) const;
  /// Fills `into`, shaped as `box`, with that part of `tensor`, converted to its dtype. Throws ConfigError where what
  /// is stored is not what the index says. Not for several threads at once.
  void read(const DcpTensor& tensor, const checkpoint::Box& box, const at::Tensor& into) const;

 private:
  const StoredTensor& stored(const DcpTensor& tensor, const DcpChunk& chunk) const;
  std::string place_text(const DcpPlace& place) const;

  std::filesystem::path folder_;
  DcpMetadata metadata_;
  mutable std::map<std::string, std::shared_ptr<const MappedFile>> files_;
  mutable std::map<std::pair<std::string, std::uint64_t>, StoredTensor> archives_;  ///< by file and offset
};

/// Tensors of such a folder under our names.
class DcpSource final : public checkpoint::WeightSource {
 public:
  /// A tensor-parallel rank's slice of a parameter, row by row within a tensor of one dimension.
  struct FlatSlice {
    const DcpTensor* tensor = nullptr;
    std::int64_t begin = 0;
    plan::ParameterSpec spec;
  };
  /// A tensor, one layer's or expert's of a tensor of all, or slices.
  struct TensorLocation {
    const DcpTensor* tensor = nullptr;
    std::vector<std::int64_t> index = {};  ///< in its leading dimensions, which ours does not have
    std::vector<std::int64_t> shape;       ///< ours: not more than it has
    std::vector<FlatSlice> flat = {};      ///< together the whole; empty: `tensor` has it
    bool zeros = false;                    ///< 0 everywhere, of the dtype of `tensor`
    double factor = 1;                     ///< of what `tensor` has
  };
  DcpSource(std::shared_ptr<const DcpFolder> folder, std::map<std::string, TensorLocation> places)
      : folder_(std::move(folder)), places_(std::move(places)) {}

  std::string name() const override { return folder_->name(); }
  std::vector<std::string> tensors() const override;
  const std::vector<std::int64_t>* shape(const std::string& tensor) const override;
  std::string dtype(const std::string& tensor) const override { return places_.at(tensor).tensor->dtype; }
  void read(const std::string& tensor, const checkpoint::Box& box, const at::Tensor& into) const override;

 private:
  void read_flat(const FlatSlice& slice, const checkpoint::Box& box, const at::Tensor& into) const;

  std::shared_ptr<const DcpFolder> folder_;
  std::map<std::string, TensorLocation> places_;
};

}  // namespace megatron::interchange
