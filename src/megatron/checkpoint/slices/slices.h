#pragma once
#include <cstdint>
#include <functional>
#include <vector>

// Slices of tensors as boxes of indices, and which elements two of them share. No torch here.
namespace megatron::checkpoint {

/// The elements whose index along dimension d is in [offset[d], offset[d] + shape[d]).
struct Box {
  std::vector<std::int64_t> offset, shape;

  std::int64_t elements() const;
  auto operator<=>(const Box&) const = default;
};

/// Whether the boxes, of equal dimensions, share an element.
bool overlap(const Box& a, const Box& b);

/// Whether any two of `boxes`, of equal dimensions, share an element. Sweeps along the dimension in which the fewest
/// pairs of boxes lie beside each other: n log n for the slices of a plan. Throws ConfigError where even those pairs
/// are more than 2^26, as they are of no plan.
bool any_overlap(const std::vector<Box>& boxes);

/// Whether `box` lies in a tensor of `shape`.
bool inside(const Box& box, const std::vector<std::int64_t>& shape);

/// Calls run(from_element, to_element, count) for the elements that two dense row-major boxes share, in ascending order
/// and in runs as long as they are contiguous in both.
void for_each_shared_run(const Box& from, const Box& to,
                         const std::function<void(std::int64_t, std::int64_t, std::int64_t)>& run);

}  // namespace megatron::checkpoint
