#include "megatron/checkpoint/slices.h"

#include <algorithm>

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
