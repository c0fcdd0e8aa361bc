#include "megatron/kernels/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "megatron/kernels/cpu/elementwise/rope.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h comes first
#include <hwy/highway.h>

#include "megatron/kernels/cpu/elementwise/rope.h"
#include "megatron/kernels/cpu/products/half-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu::HWY_NAMESPACE {
namespace {

template <class T>
void rotate_halves(T* head, const float* cos, const float* sin, float direction, std::size_t half) {
  const F sign = hn::Set(Floats(), direction);
  for_vectors(half, [=](std::size_t i, std::size_t lanes) HWY_ATTR {
    const F c = load(cos + i, lanes), s = hn::Mul(load(sin + i, lanes), sign);
    const F x = load(head + i, lanes), y = load(head + half + i, lanes);
    store(hn::NegMulAdd(y, s, hn::Mul(x, c)), head + i, lanes);
    store(hn::MulAdd(x, s, hn::Mul(y, c)), head + half + i, lanes);
  });
}

/// Pairs (2i, 2i + 1): each vector of features times its cosines, plus its neighbours times the signed sines.
template <class T>
void rotate_pairs(T* head, const float* cos, const float* sin, float direction, std::size_t half) {
  const Floats d;
  const std::size_t lanes = hn::Lanes(d);
  const F signs = hn::OddEven(hn::Set(d, direction), hn::Set(d, -direction));
  float c[HWY_MAX_BYTES / sizeof(float)] = {}, s[HWY_MAX_BYTES / sizeof(float)] = {};
  for (std::size_t i = 0; i < 2 * half; i += lanes) {
    const std::size_t count = 2 * half - i < lanes ? 2 * half - i : lanes;
    for (std::size_t j = 0; j < count; ++j) {
      c[j] = cos[(i + j) / 2];
      s[j] = sin[(i + j) / 2];
    }
    const F x = load(head + i, count), neighbours = hn::Reverse2(d, x);
    store(hn::MulAdd(neighbours, hn::Mul(hn::LoadU(d, s), signs), hn::Mul(x, hn::LoadU(d, c))), head + i, count);
  }
}

template <class T>
void rotate_as(void* head, const float* cos, const float* sin, float direction, std::size_t half, bool interleaved) {
  (interleaved ? rotate_pairs<T> : rotate_halves<T>)(static_cast<T*>(head), cos, sin, direction, half);
}

void rotate(void* head, ElementType type, const float* cos, const float* sin, float direction, std::size_t half,
            bool interleaved) {
  switch (type) {
    case ElementType::Float32:
      return rotate_as<float>(head, cos, sin, direction, half, interleaved);
    case ElementType::BFloat16:
      return rotate_as<c10::BFloat16>(head, cos, sin, direction, half, interleaved);
    case ElementType::Float16:
      return rotate_as<c10::Half>(head, cos, sin, direction, half, interleaved);
  }
}

}  // namespace
}  // namespace megatron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megatron::kernels::cpu {
HWY_EXPORT(rotate);

void rotate_head(void* head, ElementType type, const float* cos, const float* sin, float direction, std::size_t half,
                 bool interleaved) {
  HWY_DYNAMIC_DISPATCH(rotate)(head, type, cos, sin, direction, half, interleaved);
}

}  // namespace megatron::kernels::cpu
#endif  // HWY_ONCE
