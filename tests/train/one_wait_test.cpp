#include <ATen/ops/cat.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "megatron/comm/threads/local_backend.h"
#include "megatron/kernels/runtime.h"
#include "tests/testing/no_driver.h"
#include "tests/train/tiny_run.h"

// A whole training step on a device that has shapes but no numbers: whatever would make the host wait for a GPU throws
// there or is counted, and one copy, which the test answers, is all that the host learns of the step.
namespace megatron::train {
namespace {

/// What would have made the host wait for the device, or for a peer.
int& host_waits() {
  static int count = 0;
  return count;
}

/// The device's streams; asking for a moment of one to have passed is to wait.
struct Timeless final : c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::Meta> {
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override { ++host_waits(); }
  double elapsedTime(void*, void*, const c10::DeviceIndex) const override { return 1; }
};
C10_REGISTER_GUARD_IMPL(Meta, Timeless)

/// A rank among others that all have what it has. Collectives of the device's tensors are given to it and not waited
/// for, as NCCL's are; those of the host's are.
class Alike final : public comm::Backend {
 public:
  explicit Alike(int size) : size_(size) {}
  int rank() const override { return 0; }
  int size() const override { return size_; }
  std::string name() const override { return "alike"; }
  comm::WorkHandle all_reduce(at::Tensor inout, comm::ReduceOp op) override {
    if (on_host(inout) && op == comm::ReduceOp::Sum) inout.mul_(size_);
    return done();
  }
  comm::WorkHandle all_gather(at::Tensor out, at::Tensor in) override {
    if (on_host(in)) out.view({size_, -1}).copy_(in.reshape({1, -1}).expand({size_, in.numel()}));
    return done();
  }
  comm::WorkHandle reduce_scatter(at::Tensor, at::Tensor in, comm::ReduceOp) override {
    if (on_host(in)) throw std::logic_error("no step scatters numbers of the host");
    return done();
  }
  comm::WorkHandle broadcast(at::Tensor inout, int) override {
    on_host(inout);
    return done();
  }
  comm::WorkHandle all_to_all(at::Tensor out, at::Tensor in) override {
    if (on_host(in)) out.copy_(in);
    return done();
  }
  comm::WorkHandle send(at::Tensor, int, int) override { throw std::logic_error("nobody receives"); }
  comm::WorkHandle recv(at::Tensor, int, int) override { throw std::logic_error("nobody sends"); }
  comm::WorkHandle barrier() override {
    ++host_waits();
    return done();
  }
  std::shared_ptr<comm::Backend> split(const std::vector<int>& ranks) override {
    const bool is_in = std::ranges::find(ranks, 0) != ranks.end();
    return is_in ? std::make_shared<Alike>(static_cast<int>(ranks.size())) : nullptr;
  }
  void abort(const std::string&) override {}

 private:
  struct Done final : comm::Work {
    void wait() override {}
  };
  static comm::WorkHandle done() { return std::make_shared<Done>(); }
  static bool on_host(const at::Tensor& x) {
    host_waits() += x.is_cpu() ? 1 : 0;
    return x.is_cpu();
  }
  int size_;
};

struct Variant {
  const char* name;
  const char* dtype = "fp32";
  int tp = 1, dp = 1;
  void (*change)(config::RunConfig& config) = [](config::RunConfig&) {};
};

class OneWait : public ::testing::TestWithParam<Variant> {};

TEST_P(OneWait, IsAllThatAStepAsksOfTheDevice) {
  const megatron::testing::NoDriverOperators operators;
  const Variant& variant = GetParam();
  config::RunConfig config = testing::tiny_config(variant.tp, variant.dp, variant.dtype);
  config.optimizer.bucket_size = 2000;
  config.model.hidden_dropout = config.model.attention_dropout = 0.1;
  variant.change(config);
  const plan::ResolvedRun run = plan::resolve(config);
  const int world = variant.tp * variant.dp;
  Engine engine(run, world == 1 ? comm::Group() : comm::Group(std::make_shared<Alike>(world)), at::kMeta);
  std::int64_t copies = 0, launched_before = 0, launched_behind = 0;
  int waited = 0;
  engine.step.copy_by([&](const at::Tensor& numbers) -> comm::ComingNumbers {
    EXPECT_TRUE(numbers.is_meta());
    ++copies;
    launched_before = megatron::testing::NoDriver::launches();
    return [&, n = static_cast<std::size_t>(numbers.numel())] {
      launched_behind = megatron::testing::NoDriver::launches();
      waited = std::exchange(host_waits(), 0);
      return std::vector<double>(n, 1.0);
    };
  });
  for (std::int64_t i = 0; i < 2; ++i) {
    host_waits() = 0;
    copies = 0;
    const StepResult result = testing::take_step(run, engine, i);
    EXPECT_EQ(copies, 1);
    EXPECT_EQ(waited, 0) << "before it waits for the copy";
    EXPECT_LE(host_waits(), 1) << "behind it: for events that have passed before";
    EXPECT_EQ(megatron::testing::NoDriver::launches(), launched_behind) << "the host waits last";
    EXPECT_EQ(launched_behind > launched_before, !config.log.params_norm) << "the update is given before it waits";
    EXPECT_FALSE(result.skipped);
    EXPECT_EQ(result.loss, 1);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Steps, OneWait,
    ::testing::Values(Variant{.name = "Fp32"}, Variant{.name = "Fp32OnTwo", .dp = 2},
                      Variant{.name = "Bf16Sharded",
                              .dtype = "bf16",
                              .dp = 2,
                              .change = [](auto& c) { c.optimizer.use_distributed_optimizer = true; }},
                      Variant{.name = "Bf16Parallel",
                              .dtype = "bf16",
                              .tp = 2,
                              .dp = 2,
                              .change =
                                  [](auto& c) {
                                    c.parallel.sp = true;
                                    c.optimizer.stochastic_rounding = true;
                                  }},
                      Variant{.name = "Fp16",
                              .dtype = "fp16",
                              .dp = 2,
                              .change = [](auto& c) { c.optimizer.use_distributed_optimizer = true; }},
                      Variant{.name = "WithFigures", .dp = 2, .change = [](auto& c) { c.log.params_norm = true; }},
                      Variant{.name = "Lion", .dtype = "bf16", .change = [](auto& c) { c.optimizer.name = "lion"; }}),
    [](const auto& test) { return test.param.name; });

/// The weights and what the optimizer keeps of them.
at::Tensor state_of(const Engine& engine) {
  std::vector<at::Tensor> all{engine.parameters.values().to(at::kDouble)};
  for (const auto& slice : engine.optimizer.state()) all.push_back(slice.flat.to(at::kDouble));
  return at::cat(all);
}

TEST(TrainStep, DecidedByTheDeviceIsThatDecidedByTheHostBitForBit) {
  for (const char* dtype : {"fp32", "bf16", "fp16"})
    for (const char* order : {"2", "inf", "3"}) {
      config::RunConfig config = testing::tiny_config(1, 2, dtype);
      config.optimizer.use_distributed_optimizer = true;
      config.optimizer.bucket_size = 2000;
      config.optimizer.clip_grad = 0.01;
      config.optimizer.adam_eps = 1e-3;  // so that the size of the gradient matters
      config.optimizer.clip_norm = order;
      config.optimizer.initial_loss_scale = 0x1p24;  // of fp16: the first steps overflow
      config.optimizer.hysteresis = 1;
      config.log.params_norm = true;
      const plan::ResolvedRun run = plan::resolve(config);
      comm::run_ranks(2, [&](const comm::Group& world) {
        kernels::configure_thread(1);
        Engine device(run, world, at::kCPU), host(run, world, at::kCPU);
        host.step.judge([](StepResult&) {});  // nothing, but the step waits for it
        int skipped = 0;
        for (std::int64_t i = 0; i < 8; ++i) {
          const StepResult got = testing::take_step(run, device, i), want = testing::take_step(run, host, i);
          EXPECT_EQ(got.loss, want.loss) << dtype << " step " << i;
          EXPECT_EQ(got.skipped, want.skipped);
          if (!got.skipped) {
            EXPECT_EQ(got.grad_norm, want.grad_norm);
          }
          EXPECT_EQ(got.params_norm, want.params_norm);
          EXPECT_EQ(device.optimizer.steps(), host.optimizer.steps());
          EXPECT_TRUE(state_of(device).equal(state_of(host))) << dtype << ", norm " << order << ", step " << i;
          skipped += got.skipped ? 1 : 0;
        }
        if (std::string_view(dtype) == "fp16") {
          EXPECT_GT(skipped, 0);
          EXPECT_LT(skipped, 8);
        }
      });
    }
}

}  // namespace
}  // namespace megatron::train
