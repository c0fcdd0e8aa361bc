#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "megatron/families/mapping.h"
#include "megatron/plan/layer.h"
#include "megatron/plan/parameters/parameters.h"

// What the tables of the families are written with: models/*/families.cpp.
namespace megatron::families {

/// Their names of a layer's norms and linear layers, by ours within the layer: {"self_attention.linear_qkv", {"h.0.q",
/// "h.0.k", "h.0.v"}}. One name where theirs is one matrix too, which of queries, keys and values has all queries, then
/// all keys, then all values; else one for each of its parts: queries, keys, values; keys, values; gate, up.
using LayerNames = std::map<std::string, std::vector<std::string>>;

/// Collects the tensors of a table: ours, theirs.
class MappingBuilder {
 public:
  /// `transposed`: their matrices of layers are stored [inputs, outputs].
  /// `by_groups`: their one matrix of queries, keys and values has the order of ours.
  explicit MappingBuilder(bool transposed = false, bool by_groups = false)
      : transposed_(transposed), by_groups_(by_groups) {}

  void whole(const std::string& ours, const std::string& theirs, std::vector<std::int64_t> shape);
  void norm(const std::string& ours, const std::string& theirs, const plan::ModelShape& shape);
  void linear(const std::string& ours, const std::string& theirs, std::int64_t out, std::int64_t in);
  /// All parameters of a layer, which follow from its description. Throws std::logic_error where `names` do not
  /// fit them.
  void layer(const plan::LayerSpec& layer, const LayerNames& names);
  Mapping take() { return std::move(mapping_); }

 private:
  /// Rows of one source, in the order in which they follow each other in the target.
  struct Rows {
    std::size_t source;  ///< which of their names
    std::int64_t first, count;
  };
  void layer_linear(const plan::LayerSpec& layer, const plan::Linear& linear, const std::vector<std::string>& names);
  /// `columns` 0: a vector.
  void stacked(const std::string& ours, const std::vector<Rows>& parts, const std::vector<std::string>& sources,
               std::int64_t columns);
  std::vector<Rows> rows_of(const plan::LayerSpec& layer, const plan::Linear& linear, std::size_t sources) const;

  bool transposed_, by_groups_;
  Mapping mapping_;
};

}  // namespace megatron::families
