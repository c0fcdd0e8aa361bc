#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "megatron/checkpoint/weights.h"
#include "megatron/families/mapping.h"

namespace megatron::interchange {

/// The tensors of another source under other names and in other shapes.
class MappedSource : public checkpoint::WeightSource {
 public:
  /// Whether a source may have rows that the table does not use: those that pad a vocabulary.
  enum class Extent : std::uint8_t { Exact, AtLeast };

  /// Throws ConfigError where `raw` lacks a tensor that the table names, has it in another shape, or has the parts of
  /// one tensor in several dtypes.
  MappedSource(std::shared_ptr<const checkpoint::WeightSource> raw, families::Mapping mapping,
               Extent extent = Extent::Exact);

  std::string name() const override { return raw_->name(); }
  std::vector<std::string> tensors() const override;
  const std::vector<std::int64_t>* shape(const std::string& tensor) const override;
  std::string dtype(const std::string& tensor) const override;
  void read(const std::string& tensor, const checkpoint::Box& box, const at::Tensor& into) const override;

 private:
  std::shared_ptr<const checkpoint::WeightSource> raw_;
  families::Mapping mapping_;
};

/// Whether two tensors of a source have the same shape and the same bits, as far as the first difference; with a
/// `tolerance`, numbers that differ by no more than that share of the largest near them.
bool hold_the_same(const checkpoint::WeightSource& raw, const std::string& a, const std::string& b,
                   double tolerance = 0);

/// All of `weights`, which must outlive the source, under the names of a table; for an export. Throws ConfigError as
/// MappedSource does, and where the table has no place for one of the weights.
MappedSource all_under(const checkpoint::WeightSource& weights, families::Mapping mapping);

}  // namespace megatron::interchange
