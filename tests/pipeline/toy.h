#pragma once
#include <ATen/TensorOperators.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "megatron/comm/autograd.h"
#include "megatron/parallel/backward.h"
#include "megatron/pipeline/run.h"
#include "megatron/schedule/generate.h"
#include "megatron/schedule/passes.h"
#include "megatron/schedule/validate.h"
#include "tests/testing/tensors.h"

// A model that is small enough to write down: each stage is x -> tanh(x * w), the loss is the sum of what comes out.
namespace megatron::pipeline::testing {

using schedule::Communication;

constexpr std::int64_t kHidden = 4;

inline at::Tensor toy_weight(int stage) {
  return at::randn({kHidden}, at::detail::createCPUGenerator(100 + static_cast<std::uint64_t>(stage)), at::kDouble);
}
inline at::Tensor toy_input(int microbatch, const std::vector<std::int64_t>& shape) {
  return at::randn(shape, at::detail::createCPUGenerator(1000 + static_cast<std::uint64_t>(microbatch)), at::kDouble);
}

/// Shape of microbatch m's activations.
using ShapeOf = std::function<std::vector<std::int64_t>(int m)>;
inline ShapeOf fixed_shape() {
  return [](int) { return std::vector<std::int64_t>{3, 2, kHidden}; };
}

class ToyStage final : public Stage {
 public:
  ToyStage(int stage, bool last, ShapeOf shape, std::shared_ptr<parallel::GradientQueue> queue)
      : stage_(stage), last_(last), shape_(std::move(shape)) {
    weight_ = megatron::testing::make_parameter("w", toy_weight(stage), -1, 1, 0);
    weight_->queue = std::move(queue);
  }

  Output forward(int microbatch, at::Tensor x, bool /*partial*/) override {
    if (stage_ == 0) x = toy_input(microbatch, shape_(microbatch));
    const auto y = parallel::without_autograd([&] { return at::tanh(x * weight_->value); });
    const auto result = parallel::with_backward(
        {x, weight_->value}, last_ ? y.sum() : y,
        [x = x.detach(), w = weight_, last = last_](const std::vector<at::Tensor>& grads) -> std::vector<at::Tensor> {
          const auto t = at::tanh(x * w->value.detach());
          const auto g = grads[0] * (1 - t * t);
          w->contribute([=] {
            const auto dw = (g * x).sum(at::IntArrayRef{0, 1});
            w->grad.mul_(w->beta() == 0 ? 0.0 : 1.0);
            if (w->beta() == 0) w->grad.zero_();
            w->grad.add_(dw);
            w->gradient_written();
          });
          return {g * w->value.detach()};
        });
    return {result, last_ ? static_cast<double>(y.numel()) : 0.0};
  }
  std::vector<std::int64_t> boundary_shape(int microbatch) const override { return shape_(microbatch); }

  const parallel::Parameter& weight() const { return *weight_; }

 private:
  int stage_;
  bool last_;
  ShapeOf shape_;
  parallel::ParameterPtr weight_;
};

/// The stages of one rank.
struct ToyRank {
  ToyRank(const schedule::Placement& placement, int rank, const ShapeOf& shape) {
    for (const int stage : placement.stages_of(rank))
      stages.push_back(std::make_unique<ToyStage>(stage, stage + 1 == placement.num_stages(), shape, queue));
    for (const auto& stage : stages) pointers.push_back(stage.get());
  }
  std::shared_ptr<parallel::GradientQueue> queue = std::make_shared<parallel::GradientQueue>();
  std::vector<std::unique_ptr<ToyStage>> stages;
  std::vector<Stage*> pointers;
};

/// What autograd makes of the whole model at once.
struct ToyTruth {
  ToyTruth(int num_stages, int num_microbatches, const ShapeOf& shape) {
    for (int s = 0; s < num_stages; ++s) weights.push_back(toy_weight(s).requires_grad_(true));
    for (int m = 0; m < num_microbatches; ++m) {
      auto x = toy_input(m, shape(m));
      for (const auto& w : weights) x = at::tanh(x * w);
      const auto loss = x.sum();
      loss.backward();
      losses.push_back(loss.item<double>());
      count += static_cast<double>(x.numel());
    }
  }
  std::vector<at::Tensor> weights;
  std::vector<double> losses;
  double count = 0;
};

struct Case {
  std::string name;
  schedule::Program program;
};

/// Every schedule in a few shapes, lowered in every way and validated.
inline std::vector<Case> cases() {
  std::vector<Case> all;
  const auto add = [&](const std::string& name, int ranks, int chunks, int microbatches) {
    const schedule::Shape shape{.num_ranks = ranks, .num_chunks = chunks, .num_microbatches = microbatches};
    for (const auto& [how, label] : {std::pair{Communication::Unbatched, "unbatched"},
                                     {Communication::Batched, "batched"},
                                     {Communication::Overlapped, "overlapped"}}) {
      auto program =
          schedule::insert_gradient_reduction(schedule::insert_communication(schedule::generate(name, shape), how));
      schedule::validate(program);
      all.push_back({name + " p" + std::to_string(ranks) + " v" + std::to_string(chunks) + " m" +
                         std::to_string(microbatches) + " " + label,
                     std::move(program)});
    }
  };
  add("1f1b", 1, 1, 3);
  for (const schedule::ScheduleInfo& info : schedule::schedules())
    for (const int microbatches : {1, 2, 3, 8})
      for (const int ranks : {2, info.min_chunks == 1 ? 4 : 3})
        if (microbatches >= info.min_microbatches(ranks)) add(info.name, ranks, info.min_chunks, microbatches);
  add("interleaved", 4, 3, 9);
  return all;
}

}  // namespace megatron::pipeline::testing
