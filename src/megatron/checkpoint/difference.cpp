#include "megatron/checkpoint/difference.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "megatron/base/error.h"
#include "megatron/checkpoint/files/folder.h"
#include "megatron/checkpoint/files/safetensors.h"
#include "megatron/checkpoint/reader.h"
#include "megatron/checkpoint/slices/placement.h"

namespace megatron::checkpoint {
namespace {

constexpr std::int64_t kElementsAtOnce = std::int64_t{1} << 18;

/// Elements [first, first + n) of a tensor that both have.
void compare(const double* a, const double* b, std::int64_t n, std::int64_t first, double tolerance,
             TensorDifference& difference) {
  for (std::int64_t i = 0; i < n; ++i) {
    if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
    const bool finite = std::isfinite(a[i]) && std::isfinite(b[i]);
    const double apart = finite ? std::abs(a[i] - b[i]) : 0;
    if (finite && apart <= tolerance) continue;
    ++difference.elements;
    if (finite)
      difference.largest_relative =
          std::max(difference.largest_relative, apart / std::max(std::abs(a[i]), std::abs(b[i])));
    else
      ++difference.not_finite;
    if (apart <= difference.largest && difference.elements > 1) continue;
    difference.largest = apart;
    difference.at = first + i;
  }
}

std::optional<TensorDifference> compare_tensors(const Reader& first, const Reader& second, const std::string& name,
                                                double tolerance) {
  const std::vector<std::int64_t>& shape = *first.shape(name);
  TensorDifference difference{.name = name, .what = {}};
  if (shape != *second.shape(name)) {
    difference.what = concat("shape ", shape_text(shape), " and ", shape_text(*second.shape(name)));
    return difference;
  }
  const auto elements = static_cast<std::int64_t>(shape_elements(shape, name));
  for (std::int64_t begin = 0; begin < elements; begin += kElementsAtOnce) {
    std::int64_t position = begin;
    for (const Box& box : boxes_of_range(shape, begin, std::min(begin + kElementsAtOnce, elements))) {
      const at::Tensor a = at::empty(box.shape, at::kDouble), b = at::empty(box.shape, at::kDouble);
      first.read(name, box, a);
      second.read(name, box, b);
      compare(a.const_data_ptr<double>(), b.const_data_ptr<double>(), box.elements(), position, tolerance, difference);
      position += box.elements();
    }
  }
  return difference.elements > 0 ? std::optional(difference) : std::nullopt;
}

}  // namespace

std::vector<TensorDifference> differences(const std::filesystem::path& first, const std::filesystem::path& second,
                                          double tolerance, std::int64_t* compared) {
  const Reader a(find_checkpoint(first)), b(find_checkpoint(second));
  std::vector<TensorDifference> found;
  for (const auto& [name, record] : a.manifest().tensors) {
    if (b.find(name) == nullptr) {
      found.push_back({.name = name, .what = "only in the first"});
      continue;
    }
    if (compared != nullptr) ++*compared;
    if (const auto difference = compare_tensors(a, b, name, tolerance)) found.push_back(*difference);
  }
  for (const auto& [name, record] : b.manifest().tensors)
    if (a.find(name) == nullptr) found.push_back({.name = name, .what = "only in the second"});
  std::sort(found.begin(), found.end(), [](const auto& x, const auto& y) { return x.name < y.name; });
  return found;
}

}  // namespace megatron::checkpoint
