#include "megatron/comm/threads/local_reduce.h"

#include <algorithm>
#include <type_traits>

// Highway compiles the part below once for each instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "megatron/comm/threads/local_reduce.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace megatron::comm::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// load() and store() of a lane type: number types as they are, half types by way of float.
template <class D, class T>
HWY_INLINE hn::Vec<D> load(D d, const T* p) {
  if constexpr (std::is_same_v<T, hwy::bfloat16_t>) {
    const hn::Rebind<std::uint16_t, D> narrow;
    const hn::Rebind<std::uint32_t, D> wide;
    const auto bits = hn::PromoteTo(wide, hn::LoadU(narrow, reinterpret_cast<const std::uint16_t*>(p)));
    return hn::BitCast(d, hn::ShiftLeft<16>(bits));
  } else if constexpr (std::is_same_v<T, hwy::float16_t>) {
    return hn::PromoteTo(d, hn::LoadU(hn::Rebind<hwy::float16_t, D>(), p));
  } else {
    return hn::LoadU(d, p);
  }
}

template <class D, class T>
HWY_INLINE void store(D d, hn::Vec<D> v, T* p) {
  if constexpr (std::is_same_v<T, hwy::bfloat16_t>) {
    const hn::Rebind<std::uint16_t, D> narrow;
    const hn::Rebind<std::uint32_t, D> wide;
    const auto bits = hn::BitCast(wide, v);
    // To nearest even. A NaN keeps being one: made from 16-bit numbers, its low half is zero and nothing carries.
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(wide, 1u));
    const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(wide, 0x7FFFu))));
    hn::StoreU(hn::TruncateTo(narrow, rounded), narrow, reinterpret_cast<std::uint16_t*>(p));
  } else if constexpr (std::is_same_v<T, hwy::float16_t>) {
    const hn::Rebind<hwy::float16_t, D> narrow;
    hn::StoreU(hn::DemoteTo(narrow, v), narrow, p);
  } else {
    hn::StoreU(v, d, p);
  }
}

template <bool kMax, class V>
HWY_INLINE V combine(V a, V b) {
  if constexpr (kMax) {
    const auto greater = hn::IfThenElse(hn::Gt(b, a), b, a);
    if constexpr (hwy::IsFloat<hn::TFromD<hn::DFromV<V>>>()) return hn::IfThenElse(hn::IsNaN(b), b, greater);
    return greater;
  } else {
    return hn::Add(a, b);
  }
}

/// One vector: reads lane block `i` of each input, in order, and writes every output.
template <bool kMax, class D, class T>
HWY_INLINE hn::Vec<D> reduce_block(D d, const void* const* in, std::size_t n, std::int64_t i) {
  auto sum = load(d, static_cast<const T*>(in[0]) + i);
  for (std::size_t r = 1; r < n; ++r) sum = combine<kMax>(sum, load(d, static_cast<const T*>(in[r]) + i));
  return sum;
}

template <bool kMax, class T>
void reduce(const std::vector<const void*>& in, const std::vector<void*>& outs, std::int64_t begin, std::int64_t end) {
  constexpr bool kHalf = std::is_same_v<T, hwy::bfloat16_t> || std::is_same_v<T, hwy::float16_t>;
  const hn::ScalableTag<std::conditional_t<kHalf, float, T>> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t i = begin;
  if (in.size() == 2 && outs.size() == 2) {  // two ranks: without the inner loops
    const T *a = static_cast<const T*>(in[0]), *b = static_cast<const T*>(in[1]);
    T *x = static_cast<T*>(outs[0]), *y = static_cast<T*>(outs[1]);
    for (; i + lanes <= end; i += lanes) {
      const auto sum = combine<kMax>(load(d, a + i), load(d, b + i));
      store(d, sum, x + i);
      store(d, sum, y + i);
    }
  }
  for (; i + lanes <= end; i += lanes) {
    const auto sum = reduce_block<kMax, decltype(d), T>(d, in.data(), in.size(), i);
    for (void* out : outs) store(d, sum, static_cast<T*>(out) + i);
  }
  if (i == end) return;
  // The rest, by way of padded copies: the same arithmetic for every element.
  HWY_ALIGN T padded[HWY_MAX_BYTES / sizeof(T)] = {};
  const auto rest = static_cast<std::size_t>(end - i);
  const auto load_rest = [&](const void* p) HWY_ATTR {
    std::copy_n(static_cast<const T*>(p) + i, rest, padded);
    return load(d, padded);
  };
  auto sum = load_rest(in[0]);
  for (std::size_t r = 1; r < in.size(); ++r) sum = combine<kMax>(sum, load_rest(in[r]));
  store(d, sum, padded);
  for (void* out : outs) std::copy_n(padded, rest, static_cast<T*>(out) + i);
}

template <class T>
void reduce_as(ReduceOp op, const std::vector<const void*>& in, const std::vector<void*>& outs, std::int64_t begin,
               std::int64_t end) {
  op == ReduceOp::Sum ? reduce<false, T>(in, outs, begin, end) : reduce<true, T>(in, outs, begin, end);
}

void reduce_float(ReduceOp op, const std::vector<const void*>& in, const std::vector<void*>& outs, std::int64_t b,
                  std::int64_t e) {
  reduce_as<float>(op, in, outs, b, e);
}
void reduce_double(ReduceOp op, const std::vector<const void*>& in, const std::vector<void*>& outs, std::int64_t b,
                   std::int64_t e) {
  reduce_as<double>(op, in, outs, b, e);
}
void reduce_bfloat16(ReduceOp op, const std::vector<const void*>& in, const std::vector<void*>& outs, std::int64_t b,
                     std::int64_t e) {
  reduce_as<hwy::bfloat16_t>(op, in, outs, b, e);
}
void reduce_float16(ReduceOp op, const std::vector<const void*>& in, const std::vector<void*>& outs, std::int64_t b,
                    std::int64_t e) {
  reduce_as<hwy::float16_t>(op, in, outs, b, e);
}

}  // namespace megatron::comm::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megatron::comm {
namespace {

HWY_EXPORT(reduce_float);
HWY_EXPORT(reduce_double);
HWY_EXPORT(reduce_bfloat16);
HWY_EXPORT(reduce_float16);

/// Integers, which no hot path sums.
template <class T>
void reduce_integers(ReduceOp op, const std::vector<const void*>& in, const std::vector<void*>& outs,
                     std::int64_t begin, std::int64_t end) {
  for (std::int64_t i = begin; i < end; ++i) {
    T result = static_cast<const T*>(in[0])[i];
    for (std::size_t r = 1; r < in.size(); ++r) {
      const T other = static_cast<const T*>(in[r])[i];
      if (op == ReduceOp::Max) {
        result = std::max(result, other);
      } else {  // as unsigned: a signed sum that does not fit wraps around, as it does in ATen
        using Unsigned = std::make_unsigned_t<T>;
        result = static_cast<T>(static_cast<Unsigned>(static_cast<Unsigned>(result) + static_cast<Unsigned>(other)));
      }
    }
    for (void* out : outs) static_cast<T*>(out)[i] = result;
  }
}

void reduce_bools(const std::vector<const void*>& in, const std::vector<void*>& outs, std::int64_t begin,
                  std::int64_t end) {
  for (std::int64_t i = begin; i < end; ++i) {
    const bool any = std::any_of(in.begin(), in.end(), [i](const void* p) { return static_cast<const bool*>(p)[i]; });
    for (void* out : outs) static_cast<bool*>(out)[i] = any;
  }
}

}  // namespace

bool can_reduce(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
    case at::kDouble:
    case at::kBFloat16:
    case at::kHalf:
    case at::kByte:
    case at::kChar:
    case at::kShort:
    case at::kInt:
    case at::kLong:
    case at::kBool:
      return true;
    default:
      return false;
  }
}

void reduce_in_order(at::ScalarType dtype, ReduceOp op, const std::vector<const void*>& in,
                     const std::vector<void*>& outs, std::int64_t begin, std::int64_t end) {
  switch (dtype) {
    case at::kFloat:
      return HWY_DYNAMIC_DISPATCH(reduce_float)(op, in, outs, begin, end);
    case at::kDouble:
      return HWY_DYNAMIC_DISPATCH(reduce_double)(op, in, outs, begin, end);
    case at::kBFloat16:
      return HWY_DYNAMIC_DISPATCH(reduce_bfloat16)(op, in, outs, begin, end);
    case at::kHalf:
      return HWY_DYNAMIC_DISPATCH(reduce_float16)(op, in, outs, begin, end);
    case at::kByte:
      return reduce_integers<std::uint8_t>(op, in, outs, begin, end);
    case at::kChar:
      return reduce_integers<std::int8_t>(op, in, outs, begin, end);
    case at::kShort:
      return reduce_integers<std::int16_t>(op, in, outs, begin, end);
    case at::kInt:
      return reduce_integers<std::int32_t>(op, in, outs, begin, end);
    case at::kLong:
      return reduce_integers<std::int64_t>(op, in, outs, begin, end);
    case at::kBool:
      return reduce_bools(in, outs, begin, end);
    default:
      throw std::invalid_argument("reduce: not a type that can be reduced");
  }
}

}  // namespace megatron::comm
#endif  // HWY_ONCE
