#include "megatron/kernels/cpu/products/epilogue.h"

#include "megatron/kernels/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "megatron/kernels/cpu/products/epilogue.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h comes first
#include <hwy/highway.h>

#include "megatron/kernels/cpu/elementwise/activation-inl.h"
#include "megatron/kernels/cpu/elementwise/vector_body.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu::HWY_NAMESPACE {
namespace {

/// One row of everything; null where there is none.
template <class T>
struct Row {
  const float *sums, *second;  ///< second: of a gated unit's values
  const T *bias, *bias2, *u, *u2;
  T *c, *c2, *y;
};

template <class T>
HWY_INLINE F plus_bias(const float* sums, const T* bias, std::size_t i, std::size_t lanes) {
  const F sum = load(sums + i, lanes);
  return bias != nullptr ? hn::Add(sum, load(bias + i, lanes)) : sum;
}

template <class T>
void add_bias(const Row<T>& row, std::size_t count, const Activation& /*form*/) {
  for_vectors(count, [=](std::size_t i, std::size_t lanes)
                         VECTOR_BODY { store(plus_bias(row.sums, row.bias, i, lanes), row.c + i, lanes); });
}

template <class Form, class T>
void activate(const Row<T>& row, std::size_t count, const Activation& /*form*/) {
  for_vectors(count, [=](std::size_t i, std::size_t lanes) VECTOR_BODY {
    const F u = stored(plus_bias(row.sums, row.bias, i, lanes), row.c + i, lanes);
    store(Form::value(u), row.y + i, lanes);
  });
}

template <class Form, class T>
void activate_gated(const Row<T>& row, std::size_t count, const Activation& form) {
  const GatedUnit unit(form);
  for_vectors(count, [=](std::size_t i, std::size_t lanes) VECTOR_BODY {
    const F gate = stored(plus_bias(row.sums, row.bias, i, lanes), row.c + i, lanes);
    const F value = stored(plus_bias(row.second, row.bias2, i, lanes), row.c2 + i, lanes);
    store(hn::Mul(Form::value(unit.gate(gate)), unit.value(value)), row.y + i, lanes);
  });
}

template <bool kAgain, class Form, class T>
void go_back(const Row<T>& row, std::size_t count, const Activation& /*form*/) {
  for_vectors(count, [=](std::size_t i, std::size_t lanes) VECTOR_BODY {
    const F u = load(row.u + i, lanes), du = hn::Mul(load(row.sums + i, lanes), Form::slope(u));
    if constexpr (kAgain) store(Form::value(u), row.y + i, lanes);
    store(du, row.c + i, lanes);
  });
}

template <bool kAgain, class Form, class T>
void go_back_gated(const Row<T>& row, std::size_t count, const Activation& form) {
  const GatedUnit unit(form);
  for_vectors(count, [=](std::size_t i, std::size_t lanes) VECTOR_BODY {
    const F in = load(row.u + i, lanes), in_value = load(row.u2 + i, lanes), dy = load(row.sums + i, lanes);
    const F gate = unit.gate(in), value = unit.value(in_value), activated = Form::value(gate);
    const F slope = Form::slope(gate);
    store(unit.gate_gradient(in, hn::Mul(hn::Mul(dy, value), slope)), row.c + i, lanes);
    store(unit.value_gradient(in_value, hn::Mul(dy, activated)), row.c2 + i, lanes);
    if constexpr (kAgain) store(hn::Mul(activated, value), row.y + i, lanes);
  });
}

template <class T>
using RowKernel = void (*)(const Row<T>& row, std::size_t count, const Activation& form);

template <class T>
RowKernel<T> kernel_of(const Epilogue& e) {
  if (e.kind == Epilogue::Kind::AddBias) return add_bias<T>;
  return with_form(e.form, [&]<class Form>(Form) -> RowKernel<T> {
    if (e.kind == Epilogue::Kind::Activate) return e.half != 0 ? activate_gated<Form, T> : activate<Form, T>;
    if (e.y == nullptr) return e.half != 0 ? go_back_gated<false, Form, T> : go_back<false, Form, T>;
    return e.half != 0 ? go_back_gated<true, Form, T> : go_back<true, Form, T>;
  });
}

template <class T>
void rows_of_type(const Sums& sums, std::size_t rows, std::size_t columns, const MutableMatrix& c, const Epilogue& e) {
  const RowKernel<T> kernel = kernel_of<T>(e);
  const auto half_of = [&](auto* p) { return p != nullptr ? p + e.half : nullptr; };
  const T* const bias = static_cast<const T*>(e.bias);
  for (std::size_t r = 0; r < rows; ++r) {
    const auto row = static_cast<std::ptrdiff_t>(r);
    const float* const from = sums.data + r * sums.stride;
    const T* const u = e.u != nullptr ? static_cast<const T*>(e.u) + row * e.u_row : nullptr;
    T* const to = static_cast<T*>(c.data) + row * c.row;
    T* const y = e.y != nullptr ? static_cast<T*>(e.y) + row * e.y_row : nullptr;
    kernel({from, from + sums.second, bias, half_of(bias), u, half_of(u), to, to + e.half, y}, columns, e.form);
  }
}

void finish_sums(const Sums& sums, std::size_t rows, std::size_t columns, const MutableMatrix& c, const Epilogue& e) {
  switch (c.type) {
    case ElementType::Float32:
      return rows_of_type<float>(sums, rows, columns, c, e);
    case ElementType::BFloat16:
      return rows_of_type<c10::BFloat16>(sums, rows, columns, c, e);
    case ElementType::Float16:
      return rows_of_type<c10::Half>(sums, rows, columns, c, e);
  }
}

}  // namespace
}  // namespace megatron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megatron::kernels::cpu {
HWY_EXPORT(finish_sums);

Epilogue Epilogue::at(std::size_t row, std::size_t column, ElementType type) const {
  const auto r = static_cast<std::ptrdiff_t>(row), j = static_cast<std::ptrdiff_t>(column);
  const auto size = static_cast<std::ptrdiff_t>(element_size(type));
  Epilogue part = *this;
  if (bias != nullptr) part.bias = static_cast<const std::byte*>(bias) + j * size;
  if (u != nullptr) part.u = static_cast<const std::byte*>(u) + (r * u_row + j) * size;
  if (y != nullptr) part.y = static_cast<std::byte*>(y) + (r * y_row + j) * size;
  return part;
}

void finish(const Sums& sums, std::size_t rows, std::size_t columns, const MutableMatrix& c, const Epilogue& epilogue) {
  HWY_DYNAMIC_DISPATCH(finish_sums)(sums, rows, columns, c, epilogue);
}

}  // namespace megatron::kernels::cpu
#endif  // HWY_ONCE
