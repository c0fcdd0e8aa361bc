#include "megatron/plan/parameters/gradient_pool.h"

#include <algorithm>
#include <utility>

#include "megatron/plan/parameters/turns.h"

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
  std::vector<Tenant> tenants;
  std::vector<std::int64_t> sizes;
  std::vector<bool> alone;
  for (const auto& bucket : layout.buckets) {
    tenants.push_back(tenant_of(bucket, specs, options.split_backward));
    sizes.push_back(bucket.end - bucket.begin);
    alone.push_back(tenants.back().alone);
  }
  Turns turns = take_turns(sizes, alone, [&](std::size_t a, std::size_t b) {
    return meet(tenants[a], tenants[b], options.overlap ? 1 : 0);
  });
  return {turns.size, std::move(turns.begin)};
}

}  // namespace megatron::plan
