#include "megatron/interchange/mapped_source.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/text/printable.h"
#include "megatron/checkpoint/reader.h"
#include "megatron/interchange/stored_tensor.h"

namespace megatron::interchange {
namespace {

using checkpoint::shape_text;

void check_sources(const checkpoint::WeightSource& raw, const families::Mapping& mapping, MappedSource::Extent extent) {
  for (const auto& [name, wanted] : families::source_shapes(mapping)) {
    const std::vector<std::int64_t>* const got = raw.shape(name);
    if (got == nullptr)
      throw ConfigError(rule_got_fix(concat(raw.name(), ": must hold the tensor \"", printable(name), "\"."),
                                     "it does not", "complete the folder, or correct the configuration in it"));
    const bool fits = extent == MappedSource::Extent::Exact
                          ? *got == wanted
                          : checkpoint::inside({std::vector<std::int64_t>(wanted.size(), 0), wanted}, *got);
    if (!fits)
      throw ConfigError(
          rule_got_fix(concat(raw.name(), ": \"", printable(name), "\" must be ", shape_text(wanted), "."),
                       shape_text(*got), "correct the configuration in the folder"));
  }
  for (const auto& [name, tensor] : mapping)
    for (const families::MappedSlice& piece : tensor.pieces)
      if (const std::string& first = tensor.pieces.front().source; raw.dtype(piece.source) != raw.dtype(first))
        throw ConfigError(
            rule_got_fix(concat(raw.name(), ": the parts of \"", printable(name), "\" must have one dtype."),
                         concat(printable(first), ": ", raw.dtype(first), ", ", printable(piece.source), ": ",
                                raw.dtype(piece.source)),
                         "save the model in one dtype, as transformers' model.to(torch.bfloat16) and save_pretrained"));
}

}  // namespace

MappedSource::MappedSource(std::shared_ptr<const checkpoint::WeightSource> raw, families::Mapping mapping,
                           Extent extent)
    : raw_(std::move(raw)), mapping_(std::move(mapping)) {
  check_sources(*raw_, mapping_, extent);
}

std::vector<std::string> MappedSource::tensors() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : mapping_) names.push_back(name);
  return names;
}

const std::vector<std::int64_t>* MappedSource::shape(const std::string& tensor) const {
  const auto found = mapping_.find(tensor);
  return found == mapping_.end() ? nullptr : &found->second.shape;
}

std::string MappedSource::dtype(const std::string& tensor) const {
  return raw_->dtype(mapping_.at(tensor).pieces.front().source);
}

void MappedSource::read(const std::string& tensor, const checkpoint::Box& box, const at::Tensor& into) const {
  const families::MappedTensor& mapped = mapping_.at(tensor);
  if (!checkpoint::inside(box, mapped.shape))
    throw std::logic_error(concat("a slice that lies outside of \"", tensor, "\""));
  for (const families::MappedSlice& piece : mapped.pieces) {
    if (!checkpoint::overlap({piece.to, piece.shape}, box)) continue;
    at::Tensor part = into;
    checkpoint::Box source;
    for (std::size_t d = 0; d < box.shape.size(); ++d) {
      const std::int64_t begin = std::max(piece.to[d], box.offset[d]);
      const std::int64_t count = std::min(piece.to[d] + piece.shape[d], box.offset[d] + box.shape[d]) - begin;
      part = part.narrow(static_cast<std::int64_t>(d), begin - box.offset[d], count);
      source.offset.push_back(begin - piece.to[d]);
      source.shape.push_back(count);
    }
    if (mapped.transposed) {
      std::reverse(source.offset.begin(), source.offset.end());
      std::reverse(source.shape.begin(), source.shape.end());
      part = part.t();
    }
    for (std::size_t d = 0; d < source.offset.size(); ++d) source.offset[d] += piece.from[d];
    raw_->read(piece.source, source, part);
  }
}

bool hold_the_same(const checkpoint::WeightSource& raw, const std::string& a, const std::string& b, double tolerance) {
  constexpr std::int64_t kElementsAtOnce = std::int64_t{1} << 20;
  const std::vector<std::int64_t>& shape = *raw.shape(a);
  if (shape != *raw.shape(b)) return false;
  if (shape.empty() || std::ranges::count(shape, 0) > 0) return true;
  const std::string dtype = raw.dtype(a);
  const at::ScalarType type = dtype == raw.dtype(b) ? scalar_type(dtype, raw.name()) : at::kDouble;
  checkpoint::Box box{std::vector<std::int64_t>(shape.size(), 0), shape};
  const std::int64_t rows = shape[0], step = std::max<std::int64_t>(1, kElementsAtOnce / (box.elements() / rows));
  for (; box.offset[0] < rows; box.offset[0] += step) {
    box.shape[0] = std::min(step, rows - box.offset[0]);
    const at::Tensor one = at::empty(box.shape, type), other = at::empty(box.shape, type);
    raw.read(a, box, one);
    raw.read(b, box, other);
    if (std::memcmp(one.const_data_ptr(), other.const_data_ptr(), one.nbytes()) == 0) continue;
    const at::Tensor from = one.to(at::kDouble);
    const double apart = (from - other.to(at::kDouble)).abs().max().item<double>();
    if (tolerance == 0 || !(apart <= tolerance * from.abs().max().item<double>())) return false;
  }
  return true;
}

MappedSource all_under(const checkpoint::WeightSource& weights, families::Mapping mapping) {
  const auto used = families::source_shapes(mapping);
  for (const std::string& name : weights.tensors())
    if (!used.contains(name))
      throw ConfigError(
          rule_got_fix(concat(weights.name(), ": every weight must have its place in the exported model."), name));
  return {std::shared_ptr<const checkpoint::WeightSource>(std::shared_ptr<void>(), &weights), std::move(mapping)};
}

}  // namespace megatron::interchange
