#include "megatron/plan/parameters/gradient_pool.h"

#include <algorithm>
#include <numeric>

namespace megatron::plan {
namespace {

/// What decides with which others a bucket may take turns.
struct Tenant {
  int stage = 0;
  std::int64_t first = 0, last = 0;  ///< depths of its parameters, ascending
  bool alone = false;
};

Tenant tenant_of(const BufferLayout::Bucket& bucket, const std::vector<ParameterSpec>& specs, bool split_backward) {
  const auto spec = [&](int parameter) -> const ParameterSpec& {
    return specs.at(static_cast<std::size_t>(parameter));
  };
  Tenant tenant{bucket.stage, spec(bucket.parameters.front()).depth, spec(bucket.parameters.front()).depth, false};
  for (const int parameter : bucket.parameters) {
    const ParameterSpec& own = spec(parameter);
    tenant.first = std::min(tenant.first, own.depth);
    tenant.last = std::max(tenant.last, own.depth);
    tenant.alone = tenant.alone || own.in_forward || own.across_layers || (split_backward && own.depth == 0);
  }
  return tenant;
}

bool meet(const Tenant& a, const Tenant& b, std::int64_t reach) {
  return a.stage == b.stage && a.first <= b.last + reach && b.first <= a.last + reach;
}

}  // namespace

GradientPool gradient_pool(const BufferLayout& layout, const std::vector<ParameterSpec>& specs,
                           const GradientPoolOptions& options) {
  const std::size_t count = layout.buckets.size();
  std::vector<Tenant> tenants;
  for (const auto& bucket : layout.buckets) tenants.push_back(tenant_of(bucket, specs, options.split_backward));
  const auto size_of = [&](std::size_t b) { return layout.buckets[b].end - layout.buckets[b].begin; };
  // The largest first, each as low as those that it meets leave room; then those that share with nobody.
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    if (tenants[a].alone != tenants[b].alone) return tenants[b].alone;
    return size_of(a) > size_of(b);
  });
  GradientPool pool{0, std::vector<std::int64_t>(count)};
  for (auto next = order.begin(); next != order.end(); ++next) {
    const Tenant& own = tenants[*next];
    std::int64_t begin = own.alone ? pool.size : 0;
    std::vector<std::size_t> met;
    if (!own.alone)
      std::copy_if(order.begin(), next, std::back_inserter(met),
                   [&](std::size_t b) { return meet(own, tenants[b], options.overlap ? 1 : 0); });
    std::sort(met.begin(), met.end(), [&](std::size_t a, std::size_t b) { return pool.begin[a] < pool.begin[b]; });
    for (const std::size_t b : met) {
      if (begin + size_of(*next) <= pool.begin[b]) break;
      begin = std::max(begin, pool.begin[b] + size_of(b));
    }
    pool.begin[*next] = begin;
    pool.size = std::max(pool.size, begin + size_of(*next));
  }
  return pool;
}

}  // namespace megatron::plan
