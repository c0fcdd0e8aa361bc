#pragma once
#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "megatron/checkpoint/files/dtypes.h"
#include "megatron/checkpoint/weights.h"

namespace megatron::interchange {

/// Tensors in memory.
class InMemory : public checkpoint::WeightSource {
 public:
  explicit InMemory(std::map<std::string, at::Tensor> tensors) : tensors_(std::move(tensors)) {
    for (const auto& [name, tensor] : tensors_) shapes_[name] = tensor.sizes().vec();
  }
  std::string name() const override { return "memory"; }
  std::vector<std::string> tensors() const override {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : tensors_) names.push_back(name);
    return names;
  }
  const std::vector<std::int64_t>* shape(const std::string& tensor) const override {
    const auto found = shapes_.find(tensor);
    return found == shapes_.end() ? nullptr : &found->second;
  }
  std::string dtype(const std::string& tensor) const override {
    return checkpoint::dtype_name(tensors_.at(tensor).scalar_type());
  }
  void read(const std::string& tensor, const checkpoint::Box& box, const at::Tensor& into) const override {
    at::Tensor part = tensors_.at(tensor);
    for (std::size_t d = 0; d < box.shape.size(); ++d)
      part = part.narrow(static_cast<std::int64_t>(d), box.offset[d], box.shape[d]);
    into.copy_(part);
  }

 private:
  std::map<std::string, at::Tensor> tensors_;
  std::map<std::string, std::vector<std::int64_t>> shapes_;
};

}  // namespace megatron::interchange
