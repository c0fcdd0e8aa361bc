#include "megatron/kernels/operators.h"

#include <c10/core/GradMode.h>

#include <string_view>
#include <type_traits>

#include "megatron/base/error.h"
#include "megatron/base/ranges.h"
#include "megatron/kernels/cpu/isa.h"
#include "megatron/kernels/cpu/operators.h"
#include "megatron/kernels/emulated/operators.h"
#include "megatron/kernels/profile.h"
#include "megatron/kernels/reference.h"
#include "megatron/kernels/runtime.h"

namespace megatron::kernels {
namespace {

const Operators* plugins_operators = nullptr;  // as they are, null members too: set before any rank starts

enum class OwnDtypes { Stored, Masks, Any, None };

bool is_own(OwnDtypes own, at::ScalarType dtype) {
  switch (own) {
    case OwnDtypes::Stored:
      return dtype != at::kDouble;
    case OwnDtypes::Masks:
      return dtype == at::kFloat || dtype == at::kDouble;
    case OwnDtypes::Any:
      return true;
    case OwnDtypes::None:
      return false;
  }
  return false;
}

/// Kernels of CUDA take every dtype; products that the gradient's buffer adds up are those of 16-bit matrices.
bool is_own_on_cuda(std::string_view name, at::ScalarType dtype) {
  const bool gradient = name == "linear_weight_gradient" || name == "linear_gradients";
  return !gradient || dtype == at::kBFloat16 || dtype == at::kHalf;
}

OperatorInfo info_of(const char* name, OwnDtypes own, bool on_cuda) {
  OperatorInfo info{.name = name, .on_cpu = {}};
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    info.on_cpu.emplace_back(dtype, cpu::enabled() && is_own(own, dtype));
    if (on_cuda && is_own_on_cuda(name, dtype)) info.on_cuda.push_back(dtype);
  }
  return info;
}

Operators& cuda_table() {
  static Operators table = reference_operators();
  return table;
}

}  // namespace

const Operators& reference_operators() {
  static const Operators table{
#define OPERATOR(result, name, ...) .name = reference::name,
#include "megatron/kernels/operators.def"
  };
  return table;
}

const Operators& cpu_operators() {
  static const Operators table{
#define OPERATOR(result, name, ...) .name = cpu::name,
#include "megatron/kernels/operators.def"
  };
  return cpu::enabled() ? table : reference_operators();
}

const Operators& cuda_operators() { return cuda_table(); }

void set_cuda_operators(const Operators& plugin, std::size_t size) {
  if (size != sizeof(Operators))
    throw ConfigError(rule_got_fix("The CUDA plugin must be of the same source as the program.",
                                   concat("a table of ", size, " bytes, not ", sizeof(Operators)),
                                   "build both again: make"));
  plugins_operators = &plugin;
  Operators& table = cuda_table() = reference_operators();
#define OPERATOR(result, name, ...) \
  if (plugin.name != nullptr) table.name = plugin.name;
#include "megatron/kernels/operators.def"
}

const Operators& on(at::Device device) {
  if (!device.is_cpu()) return cuda_operators();
  return emulates_cuda() ? emulated_operators() : cpu_operators();
}

std::vector<OperatorInfo> operator_list() {
  return {
#define OPERATOR(result, name, parameters, arguments, where, dtypes) \
  info_of(#name, OwnDtypes::dtypes, plugins_operators != nullptr && plugins_operators->name != nullptr),
#include "megatron/kernels/operators.def"
  };
}

namespace {

/// `call`, a range for a profiler of the GPU, and counted where the thread is profiled; `count` hands its arguments to
/// the count.
template <class Call, class Count>
auto counted(const char* name, const Call& call, const Count& count) {
  const NamedRange range(name);
  OperatorProfile* const profile = OperatorProfile::current();
  if (profile == nullptr) return call();
  ProfiledCall profiled(*profile, name);
  count(profiled);
  if constexpr (std::is_void_v<decltype(call())>) {
    call();
  } else {
    auto result = call();
    profiled.result(result);
    return result;
  }
}

}  // namespace

#define OPERATOR(result, name, parameters, args, where, dtypes)       \
  result name parameters {                                            \
    const c10::NoGradGuard no_grad;                                   \
    const Operators& implementations = on(where);                     \
    return counted(                                                   \
        #name, [&]() -> result { return implementations.name args; }, \
        [&](ProfiledCall& call) { call.arguments args; });            \
  }
#include "megatron/kernels/operators.def"

}  // namespace megatron::kernels
