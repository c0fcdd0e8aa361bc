#include "megatron/checkpoint/slices/slices.h"

#include <algorithm>

#include "megatron/base/error.h"

namespace megatron::checkpoint {

std::int64_t Box::elements() const {
  std::int64_t product = 1;
  for (const std::int64_t size : shape) product *= size;
  return product;
}

bool overlap(const Box& a, const Box& b) {
  for (std::size_t d = 0; d < a.shape.size(); ++d) {
    const std::int64_t begin = std::max(a.offset[d], b.offset[d]);
    if (begin >= std::min(a.offset[d] + a.shape[d], b.offset[d] + b.shape[d])) return false;
  }
  return true;
}

namespace {

/// Pairs of boxes whose ranges along dimension d share an index. `boxes` have none that are empty.
std::uint64_t pairs_along(const std::vector<const Box*>& boxes, std::size_t d) {
  std::vector<std::int64_t> begins, ends;
  for (const Box* box : boxes) {
    begins.push_back(box->offset[d]);
    ends.push_back(box->offset[d] + box->shape[d]);
  }
  std::sort(begins.begin(), begins.end());
  std::sort(ends.begin(), ends.end());
  std::uint64_t pairs = 0;
  for (std::size_t i = 0, ended = 0; i < begins.size(); ++i) {
    while (ends[ended] <= begins[i]) ++ended;
    pairs += i - ended;
  }
  return pairs;
}

}  // namespace

bool any_overlap(const std::vector<Box>& boxes) {
  std::vector<const Box*> sorted;
  for (const Box& box : boxes)
    if (std::find(box.shape.begin(), box.shape.end(), 0) == box.shape.end()) sorted.push_back(&box);
  if (sorted.size() < 2) return false;
  std::size_t sweep = 0;
  std::uint64_t fewest = ~std::uint64_t{0};
  for (std::size_t d = 0; d < sorted[0]->shape.size(); ++d)
    if (const std::uint64_t pairs = pairs_along(sorted, d); pairs < fewest) {
      fewest = pairs;
      sweep = d;
    }
  if (sorted[0]->shape.empty()) return true;  // two of the one element that there is
  if (fewest >> 26 != 0) throw ConfigError(concat(sorted.size(), " slices that lie beside each other in every way"));
  std::sort(sorted.begin(), sorted.end(),
            [&](const Box* a, const Box* b) { return a->offset[sweep] < b->offset[sweep]; });
  std::vector<const Box*> open;
  for (const Box* box : sorted) {
    std::erase_if(open,
                  [&](const Box* other) { return other->offset[sweep] + other->shape[sweep] <= box->offset[sweep]; });
    for (const Box* other : open)
      if (overlap(*other, *box)) return true;
    open.push_back(box);
  }
  return false;
}

bool inside(const Box& box, const std::vector<std::int64_t>& shape) {
  if (box.offset.size() != shape.size() || box.shape.size() != shape.size()) return false;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (box.offset[d] < 0 || box.shape[d] < 0 || box.offset[d] > shape[d] || box.shape[d] > shape[d] - box.offset[d])
      return false;
  }
  return true;
}

void for_each_shared_run(const Box& from, const Box& to,
                         const std::function<void(std::int64_t, std::int64_t, std::int64_t)>& run) {
  if (!overlap(from, to)) return;
  const std::size_t num_dims = from.shape.size();
  std::vector<std::int64_t> begin(num_dims), size(num_dims), from_stride(num_dims), to_stride(num_dims);
  std::int64_t from_step = 1, to_step = 1, length = 1;
  std::size_t outer = num_dims;  // dimensions [outer, num_dims) form one run
  bool contiguous = true;
  for (std::size_t d = num_dims; d-- > 0;) {
    begin[d] = std::max(from.offset[d], to.offset[d]);
    size[d] = std::min(from.offset[d] + from.shape[d], to.offset[d] + to.shape[d]) - begin[d];
    from_stride[d] = from_step;
    to_stride[d] = to_step;
    from_step *= from.shape[d];
    to_step *= to.shape[d];
    if (contiguous) {
      length *= size[d];
      outer = d;
      contiguous = size[d] == from.shape[d] && size[d] == to.shape[d];
    }
  }
  std::vector<std::int64_t> index(num_dims, 0);  // within the shared box; only the first `outer` move
  while (true) {
    std::int64_t from_element = 0, to_element = 0;
    for (std::size_t d = 0; d < num_dims; ++d) {
      from_element += (begin[d] + index[d] - from.offset[d]) * from_stride[d];
      to_element += (begin[d] + index[d] - to.offset[d]) * to_stride[d];
    }
    run(from_element, to_element, length);
    std::size_t d = outer;
    while (d > 0 && ++index[d - 1] == size[d - 1]) index[--d] = 0;
    if (d == 0) return;
  }
}

}  // namespace megatron::checkpoint
