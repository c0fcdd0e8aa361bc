#pragma once
#include <ATen/ops/randn.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "megatron/kernels/emulated/operators.h"
#include "megatron/kernels/operators.h"
#include "tests/kernels/compare.h"
#include "tests/kernels/launch_orders.h"

// Operators of the kernels in phases against the reference: on the host whatever order blocks and threads take, on a
// GPU also against the host driver's bits.
namespace megatron::kernels {

using Outputs = std::vector<at::Tensor>;
using Move = std::function<at::Tensor(const at::Tensor&)>;  ///< a copy on the device that is tested
using Run = std::function<Outputs(const Operators&, const Move&)>;

inline constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf};
inline at::ScalarType wide_type(at::ScalarType dtype) { return dtype == at::kDouble ? at::kDouble : at::kFloat; }

/// Whether the device's results are the host driver's bits: not where the C library's exp and tanh are in between.
enum class Bits { Same, OfTheLibrary };

/// What the tests below compare, and on which device.
class Check {
 public:
  Check(at::ScalarType dtype, at::Device device) : dtype_(dtype), device_(device) {}

  at::ScalarType dtype() const { return dtype_; }
  at::Tensor normal(at::IntArrayRef shape) const { return at::randn(shape, at::kFloat).to(dtype_); }
  at::Tensor normal_wide(at::IntArrayRef shape) const { return at::randn(shape, at::kFloat).to(wide_type(dtype_)); }

  /// What `run` gives by the kernels, on this device.
  Outputs kernels(const Run& run) const {
    if (!device_.is_cpu()) return copied(run(cuda_operators(), mover(device_)));
    const Outputs got = host(run);
    in_other_orders([&] { expect_equal(got, host(run), "the order of threads"); });
    return got;
  }
  static Outputs host(const Run& run) { return run(emulated_operators(), mover(at::kCPU)); }
  static Outputs reference(const Run& run) { return run(reference_operators(), mover(at::kCPU)); }

  /// `factor`: of the unit roundoffs that a result may be off.
  void expect_reference(const Run& run, Bits bits, double factor = 8) const {
    const c10::NoGradGuard no_grad;
    const Outputs truth = reference(run), got = kernels(run);
    ASSERT_EQ(got.size(), truth.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i].sizes(), truth[i].sizes()) << i;
      ASSERT_EQ(got[i].scalar_type(), truth[i].scalar_type()) << i;
      const double allowed = factor * std::max(unit_roundoff(dtype_), unit_roundoff(got[i].scalar_type()));
      EXPECT_LE(relative_error(got[i], wide(truth[i])), allowed) << "result " << i;
    }
    if (!device_.is_cpu() && bits == Bits::Same) expect_equal(got, host(run), "the device");
  }
  static void expect_equal(const Outputs& got, const Outputs& other, const char* what) {
    for (std::size_t i = 0; i < got.size(); ++i)
      EXPECT_TRUE(at::allclose(got[i], other[i], 0, 0, /*equal_nan=*/true)) << "result " << i << " depends on " << what;
  }

 private:
  static Move mover(at::Device device) {
    return
        [device](const at::Tensor& x) { return x.defined() ? x.to(device, x.scalar_type(), false, /*copy=*/true) : x; };
  }
  static Outputs copied(const Outputs& outputs) {
    Outputs on_host;
    for (const at::Tensor& x : outputs) on_host.push_back(x.cpu());
    return on_host;
  }
  at::ScalarType dtype_;
  at::Device device_;
};

}  // namespace megatron::kernels
