#include "megatron/model/relative_bias.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace megatron::model {

std::int64_t relative_bucket(std::int64_t distance, bool both_ways, std::int64_t buckets, std::int64_t max_distance) {
  const std::int64_t own = both_ways ? buckets / 2 : buckets, first = both_ways && distance > 0 ? own : 0;
  const std::int64_t far = both_ways ? std::abs(distance) : std::max<std::int64_t>(-distance, 0);
  const std::int64_t exact = own / 2;
  if (far < exact) return first + far;
  const auto shared = static_cast<float>(own - exact);
  const auto whole = static_cast<float>(std::log(static_cast<double>(max_distance) / static_cast<double>(exact)));
  const float part = std::log(static_cast<float>(far) / static_cast<float>(exact)) / whole * shared;
  return first + std::min(exact + static_cast<std::int64_t>(part), own - 1);
}

RelativeBias::RelativeBias(parallel::ParameterPtr table, bool both_ways, std::int64_t max_distance)
    : table_(std::move(table)), both_ways_(both_ways), max_distance_(max_distance) {}

// Element i stands for j - i' + queries - 1 of key j and query i'; that query's position among the keys is
// i' + keys - queries.
RelativeBias::Distances RelativeBias::between(std::int64_t queries, std::int64_t keys) const {
  const std::int64_t distances = queries + keys - 1;
  const auto places = at::empty({distances}, at::kLong);
  for (std::int64_t i = 0; i < distances; ++i)
    places.mutable_data_ptr<std::int64_t>()[i] =
        relative_bucket(i - (keys - 1), both_ways_, table_->spec.shape.front(), max_distance_);
  const at::Tensor buckets = places.to(table_->value.device()), table = table_->arrived().detach();
  const auto wide = table.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return {buckets, table.index_select(0, buckets).t().to(wide).contiguous()};
}

void RelativeBias::add_gradient(const at::Tensor& dvalues, const at::Tensor& buckets) const {
  const auto sums = at::zeros({table_->spec.shape.front(), dvalues.size(0)}, dvalues.options());
  sums.index_add_(0, buckets, dvalues.t());
  parallel::Contribution(table_, parallel::Contribution::When::WithTheRest).write(sums);
}

}  // namespace megatron::model
