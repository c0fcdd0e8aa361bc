#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "megatron/checkpoint/weights.h"

namespace megatron::interchange {

/// What a token that pads the vocabulary has in the bias of the output layer: its share of a softmax is 0 in every data
/// type, and so is its gradient.
constexpr double kPaddingBias = -30000;

/// The tensors of `raw`, which must outlive the source, with more rows in those of the vocabulary, state of an
/// optimizer included: rows of padding are 0, in the bias of the output layer kPaddingBias.
class PaddedSource final : public checkpoint::WeightSource {
 public:
  PaddedSource(const checkpoint::WeightSource& raw, std::int64_t rows);

  std::string name() const override { return raw_.name(); }
  std::vector<std::string> tensors() const override { return raw_.tensors(); }
  const std::vector<std::int64_t>* shape(const std::string& tensor) const override;
  std::string dtype(const std::string& tensor) const override { return raw_.dtype(tensor); }
  void read(const std::string& tensor, const checkpoint::Box& box, const at::Tensor& into) const override;

 private:
  const checkpoint::WeightSource& raw_;
  std::int64_t rows_;
  mutable std::map<std::string, std::vector<std::int64_t>> shapes_;
};

}  // namespace megatron::interchange
