#include <ATen/ops/matmul.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <vector>

#include "megatron/kernels/cpu/isa.h"
#include "megatron/kernels/matmul.h"
#include "megatron/kernels/reference.h"
#include "tests/kernels/compare.h"
#include "tests/kernels/isa.h"

// Products that end in an activation or begin the way back from one, against the reference in float64.
namespace megatron::kernels {
namespace {

/// Half a unit in the last place of what is stored, and float32 sums; of emulated tiles with precision "high" 2^-16.
double rounding_bound(at::ScalarType stored) {
  return stored == at::kBFloat16 ? 4.0e-3 : stored == at::kHalf ? 5.0e-4 : 2e-6;
}

struct MlpShape {
  std::int64_t rows, features, inputs;
};
// Few rows; edges of vectors, panels and pieces; gated halves that are no whole panels; several blocks of rows and
// columns, several pieces of depth, groups of columns; more depth than stays in the second cache.
const std::vector<MlpShape> kMlpShapes = {{3, 48, 40},  {33, 31, 47},   {64, 96, 64},   {45, 64, 96},
                                          {70, 33, 65}, {40, 600, 800}, {600, 320, 35}, {33, 416, 1100}};

struct MlpData {
  at::Tensor x, w, bias, dz, w2;
  MlpData(const MlpShape& s, bool gated, at::ScalarType t) {
    const std::int64_t columns = gated ? 2 * s.features : s.features;
    x = at::randn({s.rows, 1, s.inputs}).to(t);
    w = (at::randn({columns, s.inputs}) / std::sqrt(static_cast<double>(s.inputs))).to(t);
    bias = at::randn({columns}).to(t);
    dz = at::randn({s.rows, 1, s.inputs}).to(t);
    w2 = (at::randn({s.inputs, s.features}) / std::sqrt(static_cast<double>(s.inputs))).to(t);
  }
};

/// Of what was stored as u: y is its activation, rounded once.
void expect_activation(const ActivatedOutput& out, Activation form, bool gated) {
  const at::Tensor u = wide(out.u);
  const at::Tensor y = gated ? reference::gated_activation(u, form) : reference::activation(u, form);
  EXPECT_LT(relative_error(out.y, y), rounding_bound(out.y.scalar_type()));
}

void expect_reference(const MlpShape& s, Activation form, bool gated, at::ScalarType t, double most) {
  SCOPED_TRACE(testing::Message() << t << " " << s.rows << " x " << s.features << " x " << s.inputs << " form "
                                  << static_cast<int>(form.kind) << (gated ? " gated" : ""));
  const MlpData d(s, gated, t);
  for (const bool biased : {true, false}) {
    const at::Tensor bias = biased ? d.bias : at::Tensor();
    const ActivatedOutput out = linear_activation(d.x, d.w, bias, form, gated);
    const at::Tensor u = at::matmul(wide(d.x), wide(d.w).t());
    EXPECT_LT(relative_error(out.u, biased ? u + wide(bias) : u), most);
    expect_activation(out, form, gated);
    PackedWeight packed;
    const ActivatedOutput same = linear_activation(d.x, d.w, bias, form, gated, &packed);
    EXPECT_TRUE(same.u.equal(out.u) && same.y.equal(out.y));
    EXPECT_LT(relative_error(kernels::linear(d.x, d.w, nullptr, bias), biased ? u + wide(bias) : u), most);
  }
  const at::Tensor u = at::randn({s.rows, 1, gated ? 2 * s.features : s.features}).to(t), kept = u.clone();
  const ActivatedOutput truth =
      reference::linear_activation_gradient(wide(d.dz), wide(d.w2), wide(u), form, gated, true, nullptr);
  const ActivatedOutput both = linear_activation_gradient(d.dz, d.w2, u, form, gated, true);
  EXPECT_LT(relative_error(both.u, truth.u), 2 * most);
  EXPECT_LT(relative_error(both.y, truth.y), rounding_bound(t));
  EXPECT_TRUE(u.equal(kept));
  const ActivatedOutput alone = linear_activation_gradient(d.dz, d.w2, u, form, gated, false);
  EXPECT_TRUE(alone.u.equal(both.u));
  EXPECT_FALSE(alone.y.defined());
}

void expect_reference_of_all(const std::vector<at::ScalarType>& types, double most = 0) {
  for (const at::ScalarType t : types)
    for (const bool gated : {false, true}) {
      for (const MlpShape& s : kMlpShapes)
        expect_reference(s, gated ? Activation::Silu : Activation::GeluTanh, gated, t,
                         most > 0 ? most : rounding_bound(t));
      for (const Activation form : kForms)
        expect_reference(kMlpShapes[2], form, gated, t, most > 0 ? most : rounding_bound(t));
    }
}

/// Float32 by own products as well, which other tests leave to the processor.
class EpilogueTest : public OnEveryInstructionSet {
 protected:
  void TearDown() override {
    cpu::choose_float32_products(cpu::Float32Products::OfThisMachine);
    OnEveryInstructionSet::TearDown();
  }
};

TEST_F(EpilogueTest, OfFloat32ArithmeticIsTheReference) {
  for (const auto products : {cpu::Float32Products::Own, cpu::Float32Products::Library}) {
    cpu::choose_float32_products(products);
    on_each([] { expect_reference_of_all({at::kFloat, at::kBFloat16, at::kHalf}); });
  }
}

TEST_F(EpilogueTest, DoesNotChangeWithTheThreads) {
  cpu::choose_float32_products(cpu::Float32Products::Own);
  on_each([] {
    for (const at::ScalarType t : {at::kFloat, at::kBFloat16}) {
      const MlpData d({700, 320, 96}, true, t);
      const auto run = [&] { return linear_activation(d.x, d.w, d.bias, Activation::Silu, true); };
      const ActivatedOutput alone = run();
      configure_thread(2);
      const ActivatedOutput two = run();
      configure_thread(1);
      EXPECT_TRUE(two.u.equal(alone.u) && two.y.equal(alone.y));
    }
  });
}

class TileEpilogueTest : public OnEmulatedTiles {
 protected:
  void TearDown() override {
    set_matmul_precision("highest");
    OnEmulatedTiles::TearDown();
  }
};

TEST_F(TileEpilogueTest, OfTilesAndDotProductsIsTheReference) {
  on_each([] { expect_reference_of_all({at::kBFloat16}); });
}

TEST_F(TileEpilogueTest, OfThreeProductsIsTheReference) {
  set_matmul_precision("high");
  expect_reference_of_all({at::kFloat}, 2e-5);
}

}  // namespace
}  // namespace megatron::kernels
