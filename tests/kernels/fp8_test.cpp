#include "megatron/kernels/fp8/fp8.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <ostream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "megatron/kernels/operators.h"
#include "tests/kernels/isa.h"
#include "tests/kernels/phases_check.h"
#include "tests/testing/cuda.h"

// What makes operands of 8 bits against the reference, whose numbers tests/parallel compares with the formats'
// definitions: the same bits from the kernels of CUDA, on the host and on a GPU, and from those of the CPU.
namespace megatron::kernels {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity(), kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr at::ScalarType kTypes[] = {at::kFloat8_e4m3fn, at::kFloat8_e5m2};
using Along = Fp8Tile::Along;

/// Bits of `x` as whole numbers, those of every NaN the same; zeros have signs.
at::Tensor bits(const at::Tensor& x) {
  if (!x.defined()) return at::zeros({0}, at::kLong);
  const at::Tensor there = x.cpu(), nan = there.to(at::kDouble).isnan();
  const at::ScalarType whole = x.element_size() == 1   ? at::kByte
                               : x.element_size() == 2 ? at::kShort
                               : x.element_size() == 4 ? at::kInt
                                                       : at::kLong;
  return at::where(nan, at::full({}, -1, at::kLong), there.contiguous().view(whole).to(at::kLong));
}

/// Bits of results and, of scales, where they lie: 8-bit numbers are compared by allclose() otherwise.
Outputs bits_of(const Outputs& outputs) {
  Outputs all;
  for (const at::Tensor& x : outputs) all.push_back(bits(x));
  return all;
}
Outputs of(const Fp8Matrices& x) {
  Outputs all;
  for (const Fp8Matrix& matrix : {x.rows, x.turned})
    for (const at::Tensor& t : {matrix.numbers, matrix.inverse}) {
      all.push_back(t);
      if (t.defined()) all.push_back(t.as_strided({t.numel()}, {1}));  // as it lies in memory
    }
  return all;
}

/// Numbers of magnitudes that differ from row to row and from column to column, with zeros, numbers that a type holds
/// as denormal ones, and some that are large.
at::Tensor uneven(at::IntArrayRef shape, at::ScalarType dtype) {
  at::Tensor x = at::randn(shape, at::kFloat).mul(at::randn(shape, at::kFloat).mul(4).exp());
  if (x.dim() > 1) x = x.mul(at::randn({shape[0]}, at::kFloat).mul(6).exp().view({-1, 1, 1}).squeeze(x.dim() == 2));
  x = x.clamp(-6e4, 6e4).to(dtype);
  const at::Tensor flat = x.view({-1});
  const double least = dtype == at::kHalf ? 6e-8 : 1e-40;
  for (std::int64_t i = 0; i < flat.numel(); i += 7) flat[i] = i % 2 == 0 ? 0.0 : -least * static_cast<double>(i % 5);
  return x;
}

/// Every number of 16 bits: more than any type here but float32 and float64 has.
at::Tensor every_number(at::ScalarType dtype) {
  const at::Tensor all = at::arange(65536, at::kInt).to(at::kShort);
  return at::cat({all.view(at::kBFloat16).to(dtype), all.view(at::kHalf).to(dtype)});
}

const Fp8Scale& by(double scale) {
  static thread_local Fp8Scale made;
  made = {at::scalar_tensor(scale, at::kFloat), at::scalar_tensor(1 / scale, at::kFloat)};
  return made;
}

struct Shape {
  std::int64_t first, samples, last;
};
constexpr Shape kShapes[] = {{1, 1, 1}, {3, 2, 7}, {33, 1, 40}, {130, 2, 257}, {64, 3, 160}, {128, 2, 384}};

void of_one_scale(const Check& check) {
  std::vector<at::Tensor> inputs = {every_number(check.dtype())};
  for (const auto& [first, samples, last] : kShapes) inputs.push_back(uneven({first, samples, last}, check.dtype()));
  for (const at::ScalarType type : kTypes)
    for (const auto& [scale, on_device] : {std::pair{1.0, false}, {0x1p-60, true}, {0x1p9, false}})
      for (const at::Tensor& x : inputs) {
        const auto run = [&](const Operators& o, const Move& to) {
          const Fp8Scale s{on_device ? to(by(scale).scale) : by(scale).scale, to(by(scale).inverse)};
          const at::Tensor there = to(x), seen = to(at::scalar_tensor(1e-3, at::kFloat)), other = to(seen);
          const Fp8Numbers both = o.fp8_numbers(there, type, s, {.rows = true, .turned = true}, seen);
          const Fp8Numbers turned = o.fp8_numbers(there, type, s, {.rows = false, .turned = true}, {});
          return bits_of({both.rows, both.turned, seen, o.fp8_numbers(there, type, s, {}, {}).rows, turned.turned,
                          o.fp8_rounded(there, type, s, other), other, o.fp8_rounded(there, type, s, {})});
        };
        Check::expect_equal(check.kernels(run), Check::reference(run), "who quantizes");
      }
}

void magnitudes(const Check& check) {
  for (const auto& [first, samples, last] : kShapes)
    for (const double odd : {1.0, kInfinity, -kInfinity, kNaN})
      for (const double before : {0.0, 1e5, kNaN}) {
        at::Tensor x = uneven({first, samples, last}, check.dtype());
        x.view({-1})[x.numel() / 2] = odd;
        const auto run = [&](const Operators& o, const Move& to) {
          const at::Tensor seen = to(at::scalar_tensor(before, at::kFloat));
          return bits_of({o.fp8_magnitude(to(x), seen), seen, o.fp8_magnitude(to(x), {})});
        };
        Check::expect_equal(check.kernels(run), Check::reference(run), "who looks");
      }
}

void scales(const Check& check) {
  std::vector<at::Tensor> all = {every_number(at::kFloat).abs()};
  for (int exponent = -149; exponent < 128; ++exponent)
    for (const float significand : {1.0F, 1.75F, std::nextafter(1.75F, 2.0F), std::nextafter(2.0F, 1.0F)})
      all.push_back(at::full({1}, std::ldexp(significand, exponent), at::kFloat));
  const at::Tensor amax = at::cat(all);
  for (const at::ScalarType type : kTypes) {
    const auto run = [&](const Operators& o, const Move& to) {
      const Fp8Scale found = o.fp8_scale_of(to(amax), type), one = o.fp8_scale_of(to(amax[7]), type);
      return bits_of({found.scale, found.inverse, one.scale, one.inverse});
    };
    Check::expect_equal(check.kernels(run), Check::reference(run), "who finds them");
  }
}

void matrices(const Check& check) {
  for (const at::ScalarType type : kTypes)
    for (const std::int64_t size : {32, 128})
      for (const bool squares : {false, true}) {
        if (squares && size == 32) continue;
        // Fewer and more rows and blocks than cuBLAS's tiles of scales have, and as many.
        for (const auto& [first, last] : {std::pair{1, 3}, {4, 1}, {5, 6}, {4, 4}})
          for (const bool broken : {false, true}) {
            const std::vector<std::int64_t> shape = squares ? std::vector{first * size, last * size}
                                                            : std::vector<std::int64_t>{first * size, 2, last * size};
            at::Tensor x = uneven(shape, check.dtype());
            if (broken) x.view({-1})[x.numel() / 3] = kNaN;
            const auto run = [&](const Operators& o, const Move& to) {
              Outputs out = of(o.fp8_matrices(to(x), type, size, squares, {.rows = true, .turned = true}));
              for (const Fp8Wanted wanted : {Fp8Wanted{}, Fp8Wanted{.rows = false, .turned = true}})
                for (const at::Tensor& t : of(o.fp8_matrices(to(x), type, size, squares, wanted))) out.push_back(t);
              return bits_of(out);
            };
            Check::expect_equal(check.kernels(run), Check::reference(run), "who quantizes");
          }
      }
}

void of_blocks(const Check& check) {
  for (const at::ScalarType type : kTypes)
    for (const auto& [first, samples, last] : kShapes)
      for (const double odd : {0.0, kInfinity, kNaN}) {
        at::Tensor x = uneven({first, samples, last}, check.dtype());
        x.view({-1})[x.numel() / 2] = odd;
        const auto run = [&](const Operators& o, const Move& to) {
          Outputs out;
          for (const std::int64_t size : {32, 128})
            for (const Along along : {Along::Last, Along::First})
              out.push_back(o.fp8_rounded_in_blocks(to(x), type, {along, size}));
          out.push_back(o.fp8_rounded_in_blocks(to(x.flatten(0, 1)), type, {Along::Both}));
          return bits_of(out);
        };
        Check::expect_equal(check.kernels(run), Check::reference(run), "who quantizes");
      }
}

struct Tested {
  const char* name;
  void (*run)(const Check&);
  friend void PrintTo(const Tested& tested, std::ostream* out) { *out << tested.name; }
};
constexpr Tested kTested[] = {{"OfOneScale", of_one_scale},
                              {"Magnitudes", magnitudes},
                              {"Scales", scales},
                              {"Matrices", matrices},
                              {"OfBlocks", of_blocks}};

using Parameter = std::tuple<Tested, at::ScalarType>;
std::string name_of(const testing::TestParamInfo<Parameter>& info) {
  return std::string(std::get<0>(info.param).name) + "_" + c10::toString(std::get<1>(info.param));
}

class EmulatedFp8 : public testing::TestWithParam<Parameter> {};
TEST_P(EmulatedFp8, HasTheReferencesBitsInAnyOrderOfThreads) {
  const c10::NoGradGuard no_grad;
  const auto& [tested, dtype] = GetParam();
  tested.run(Check(dtype, at::kCPU));
}

class Fp8CudaKernels : public testing::TestWithParam<Parameter> {};
TEST_P(Fp8CudaKernels, HaveTheReferencesBits) {
  NEEDS_A_GPU();
  const c10::NoGradGuard no_grad;
  const auto& [tested, dtype] = GetParam();
  tested.run(Check(dtype, at::kCUDA));
}

INSTANTIATE_TEST_SUITE_P(Dtypes, EmulatedFp8, testing::Combine(testing::ValuesIn(kTested), testing::ValuesIn(kDtypes)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Dtypes, Fp8CudaKernels,
                         testing::Combine(testing::ValuesIn(kTested), testing::ValuesIn(kDtypes)), name_of);

class Fp8OfTheCpu : public OnEveryInstructionSet {};

TEST_F(Fp8OfTheCpu, HasTheReferencesBits) {
  const c10::NoGradGuard no_grad;
  on_each([] {
    for (const at::ScalarType dtype : kDtypes)
      for (const at::ScalarType type : kTypes) {
        std::vector<at::Tensor> inputs = {every_number(dtype), uneven({300, 4, 70}, dtype),
                                          uneven({130, 2, 700}, dtype)};
        inputs.push_back(inputs[1].clone());
        inputs.back()[7][1][8] = kNaN;
        inputs.push_back(inputs[1].clone());
        inputs.back()[7][1][8] = -kInfinity;
        for (const at::Tensor& x : inputs) {
          const auto run = [&](const Operators& o) {
            const at::Tensor seen = at::scalar_tensor(1e-3, at::kFloat), other = seen.clone();
            Outputs out = {o.fp8_magnitude(x, seen), seen, o.fp8_rounded(x, type, by(0x1p-60), other), other,
                           o.fp8_rounded(x, type, by(4), {})};
            if (x.dim() > 1) {
              for (const std::int64_t size : {32, 128})
                for (const Along along : {Along::Last, Along::First})
                  out.push_back(o.fp8_rounded_in_blocks(x, type, {along, size}));
              out.push_back(o.fp8_rounded_in_blocks(x.flatten(0, 1), type, {Along::Both}));
            }
            return bits_of(out);
          };
          Check::expect_equal(run(cpu_operators()), run(reference_operators()), "the instruction set");
        }
      }
  });
}

TEST(Fp8Matrices, WantWholeBlocks) {
  const at::Tensor x = at::zeros({130, 1, 128});
  for (const Operators* o : {&reference_operators(), &emulated_operators()}) {
    EXPECT_NO_THROW(o->fp8_matrices(x, at::kFloat8_e4m3fn, 128, false, {}));
    EXPECT_THROW(o->fp8_matrices(x, at::kFloat8_e4m3fn, 128, false, {.turned = true}), std::invalid_argument);
    EXPECT_THROW(o->fp8_matrices(x, at::kFloat8_e4m3fn, 128, true, {}), std::invalid_argument);
  }
}

}  // namespace
}  // namespace megatron::kernels
