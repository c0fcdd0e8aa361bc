#include "megatron/kernels/dropout.h"

#include <ATen/ops/empty.h>

#include <vector>

#include "megatron/base/philox.h"
#include "megatron/kernels/cpu/isa.h"
#include "megatron/kernels/cpu/operators.h"
#include "megatron/kernels/cpu/parallel.h"
#include "megatron/kernels/cpu/random/random.h"
#include "megatron/kernels/reference.h"

namespace megatron::kernels {
namespace {

template <class T>
void write_mask(const std::uint32_t* words, std::size_t count, const Dropout& dropout, T* out) {
  const std::uint32_t threshold = dropout_threshold(dropout.p);
  const T keep = static_cast<T>(dropout.p < 1 ? 1.0 / (1.0 - dropout.p) : 0.0);
  for (std::size_t i = 0; i < count; ++i) out[i] = words[i] >= threshold ? keep : T{0};
}

/// Rows of `count` mask elements; row r belongs to sample_of(r) and begins with element first_of(r) of its stream.
template <class Sample, class First>
at::Tensor mask_by_rows(const Dropout& dropout, at::IntArrayRef shape, at::ScalarType dtype, const Sample& sample_of,
                        const First& first_of) {
  at::Tensor mask = at::empty(shape, dtype);
  const std::int64_t count = shape.back(), rows = count > 0 ? mask.numel() / count : 0;
  const auto length = static_cast<std::size_t>(count);
  // A row for each thread: nothing may throw inside a parallel region.
  std::vector<std::uint32_t> scratch(static_cast<std::size_t>(cpu::num_threads()) * length);
  cpu::for_each_block(rows, [&](std::int64_t row, int thread) {
    std::uint32_t* words = scratch.data() + static_cast<std::size_t>(thread) * length;
    cpu::random_words(dropout.key, static_cast<std::uint64_t>(sample_of(row)),
                      static_cast<std::uint64_t>(first_of(row)), length, words);
    if (dtype == at::kDouble) {
      write_mask(words, length, dropout, mask.mutable_data_ptr<double>() + row * count);
    } else {
      write_mask(words, length, dropout, mask.mutable_data_ptr<float>() + row * count);
    }
  });
  return mask;
}

bool can_mask(at::ScalarType dtype, at::Device device) {
  return cpu::enabled() && device.is_cpu() && (dtype == at::kFloat || dtype == at::kDouble);
}

}  // namespace

namespace cpu {

at::Tensor dropout_mask(const Dropout& dropout, std::int64_t s, std::int64_t b, std::int64_t h, at::ScalarType dtype,
                        at::Device device) {
  if (!can_mask(dtype, device)) return reference::dropout_mask(dropout, s, b, h, dtype, device);
  const at::Tensor ids = dropout.sample_ids.contiguous();
  const std::int64_t* sample = ids.const_data_ptr<std::int64_t>();
  const std::int64_t features = dropout.features_or(h);
  return mask_by_rows(
      dropout, {s, b, h}, dtype, [&](std::int64_t row) { return sample[row % b]; },
      [&](std::int64_t row) { return dropout.position_of(row / b) * features + dropout.feature_offset; });
}

at::Tensor attention_dropout_mask(const Dropout& dropout, std::int64_t b, std::int64_t n, std::int64_t head_offset,
                                  std::int64_t queries, std::int64_t keys, at::ScalarType dtype, at::Device device) {
  if (!can_mask(dtype, device)) {
    return reference::attention_dropout_mask(dropout, b, n, head_offset, queries, keys, dtype, device);
  }
  const at::Tensor ids = dropout.sample_ids.contiguous();
  const std::int64_t* sample = ids.const_data_ptr<std::int64_t>();
  const std::int64_t all_queries = dropout.positions_or(queries), all_keys = dropout.features_or(keys);
  return mask_by_rows(
      dropout, {b, n, queries, keys}, dtype, [&](std::int64_t row) { return sample[row / (n * queries)]; },
      [&](std::int64_t row) {
        const std::int64_t head = head_offset + row / queries % n;
        return (head * all_queries + dropout.position_offset + row % queries) * all_keys + dropout.feature_offset;
      });
}

}  // namespace cpu
}  // namespace megatron::kernels
