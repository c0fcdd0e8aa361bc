#include <ATen/ops/zero.h>

#include <utility>

#include "megatron/optim/optimizer.h"

namespace megatron::optim {

struct GradientReducer::Impl {
  struct Bucket {
    at::Tensor gradients;  // the bucket's part of the flat buffer
    std::vector<parallel::ParameterPtr> parameters;
    std::size_t incomplete = 0;
    comm::WorkHandle work;
  };

  comm::Group dp;
  bool overlap;
  std::vector<Bucket> buckets;
  std::size_t next = 0;  // first bucket whose all-reduce has not started

  // Buckets start in the order of the buffer alone, so that every rank issues the same collectives in the same order
  // even if one rank's backward finished its gradients in another.
  void parameter_complete(Bucket& bucket) {
    --bucket.incomplete;
    while (overlap && next < buckets.size() && buckets[next].incomplete == 0) start_next();
  }

  // A backward pass outside of a step concerns nobody here.
  void disarm() const {
    for (const auto& bucket : buckets)
      for (const auto& parameter : bucket.parameters) parameter->on_complete(0, [] {});
  }

  void start_next() {
    Bucket& bucket = buckets[next++];
    bucket.work = dp.all_reduce_async(bucket.gradients);
  }
};

GradientReducer::GradientReducer(const parallel::ParameterStore& parameters, comm::Group dp, bool overlap)
    : impl_(std::make_unique<Impl>()) {
  impl_->dp = std::move(dp);
  impl_->overlap = overlap;
  for (const auto& planned : parameters.layout().buckets) {
    Impl::Bucket bucket;
    bucket.gradients = parameters.gradients().narrow(0, planned.begin, planned.end - planned.begin);
    for (const int index : planned.parameters)
      bucket.parameters.push_back(parameters.all().at(static_cast<std::size_t>(index)));
    impl_->buckets.push_back(std::move(bucket));
  }
}

GradientReducer::~GradientReducer() { impl_->disarm(); }

void GradientReducer::begin_step(int num_microbatches) {
  impl_->next = 0;
  for (auto& bucket : impl_->buckets) {
    bucket.incomplete = bucket.parameters.size();
    bucket.work.reset();
    for (const auto& parameter : bucket.parameters) {
      parameter->clear_gradient();
      parameter->on_complete(parameter->spec.gradient_uses * num_microbatches,
                             [impl = impl_.get(), &bucket] { impl->parameter_complete(bucket); });
    }
  }
}

void GradientReducer::finish() {
  impl_->disarm();
  for (const auto& bucket : impl_->buckets)
    for (const auto& parameter : bucket.parameters)
      if (parameter->contributions() == 0) parameter->grad.zero_();  // what is left of the step before
  while (impl_->next < impl_->buckets.size()) impl_->start_next();
  for (auto& bucket : impl_->buckets) {
    bucket.work->wait();
    bucket.work.reset();
  }
}

}  // namespace megatron::optim
