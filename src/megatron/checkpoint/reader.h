#pragma once
#include <deque>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "megatron/checkpoint/checkpoint.h"
#include "megatron/checkpoint/files/files.h"
#include "megatron/checkpoint/files/manifest.h"
#include "megatron/checkpoint/slices/read_plan.h"
#include "megatron/checkpoint/weights.h"

namespace megatron::checkpoint {

/// One checkpoint, read slice by slice. Opens a file when it is needed, at most 64 at a time; holds 1 MiB of each.
/// Every byte that is used has been compared with its checksum.
class Reader final : public WeightSource {
 public:
  /// `folder`: the iter_ folder. Throws Unreadable where its manifest cannot be read.
  explicit Reader(std::filesystem::path folder);

  const Manifest& manifest() const { return manifest_; }
  /// Nothing where the checkpoint does not hold it.
  const TensorRecord* find(const std::string& tensor) const;

  std::string name() const override { return folder_.string(); }
  /// The weights' alone, not the optimizer's.
  std::vector<std::string> tensors() const override;
  const std::vector<std::int64_t>* shape(const std::string& tensor) const override;
  std::string dtype(const std::string& tensor) const override;
  /// Says what is read next, after what earlier calls said. Only speed depends on it. Throws as read() does.
  void expect(const ReadPlan& plan) const;
  void expect(const std::string& tensor, const Box& box) const;
  /// Of weights and of the optimizer's state. Throws Damage, which names a checkpoint that may serve instead;
  /// std::logic_error for a slice outside of the tensor.
  void read(const std::string& tensor, const Box& box, const at::Tensor& into) const override;
  /// From the files, until now.
  std::uint64_t bytes_read() const;

 private:
  void fill(const TensorRecord& record, const Box& box, const at::Tensor& buffer) const;
  CheckedReader& file(std::size_t index) const;

  std::filesystem::path folder_;
  Manifest manifest_;
  mutable std::vector<std::unique_ptr<CheckedReader>> files_;
  mutable std::deque<std::size_t> open_;  ///< of them, the first opened first
  mutable std::uint64_t read_and_closed_ = 0;
};

/// Whether a tensor of a checkpoint is a weight, not the optimizer's.
bool is_weight(const std::string& tensor);

/// "[2, 3]".
std::string shape_text(const std::vector<std::int64_t>& shape);

}  // namespace megatron::checkpoint
