#include "megatron/checkpoint/files/dtypes.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstring>
#include <stdexcept>
#include <utility>

#include "megatron/checkpoint/files/safetensors.h"

namespace megatron::checkpoint {
namespace {

constexpr std::pair<at::ScalarType, const char*> kNames[] = {
    {at::kDouble, "F64"}, {at::kFloat, "F32"}, {at::kHalf, "F16"}, {at::kBFloat16, "BF16"}, {at::kLong, "I64"},
    {at::kInt, "I32"},    {at::kShort, "I16"}, {at::kChar, "I8"},  {at::kByte, "U8"},       {at::kBool, "BOOL"}};

/// Calls visit(a value of the dtype); false for one that is no floating-point number here.
bool with_type(const std::string& name, const auto& visit) {
  if (name == "F64")
    visit(double{});
  else if (name == "F32")
    visit(float{});
  else if (name == "F16")
    visit(c10::Half{});
  else if (name == "BF16")
    visit(c10::BFloat16{});
  else
    return false;
  return true;
}

}  // namespace

std::string dtype_name(at::ScalarType type) {
  for (const auto& [candidate, name] : kNames)
    if (candidate == type) return name;
  throw std::invalid_argument(std::string("a checkpoint cannot hold tensors of dtype ") + c10::toString(type));
}

at::ScalarType dtype_of(const std::string& name) {
  for (const auto& [type, candidate] : kNames)
    if (candidate == name) return type;
  throw std::invalid_argument("no tensor can have the dtype " + name);
}

bool converts(const std::string& from, const std::string& to) {
  const auto is_float = [](const std::string& name) { return with_type(name, [](auto) {}); };
  return from == to || (is_float(from) && is_float(to));
}

void convert(const std::string& from, const std::byte* source, const std::string& to, std::byte* target,
             std::size_t count) {
  if (from == to) {
    std::memcpy(target, source, count * dtype_bytes(from));
    return;
  }
  with_type(from, [&]<class From>(From) {
    with_type(to, [&]<class To>(To) {
      const auto* const in = reinterpret_cast<const From*>(source);
      auto* const out = reinterpret_cast<To*>(target);
      for (std::size_t i = 0; i < count; ++i) {
        if constexpr (sizeof(To) >= sizeof(float) && sizeof(From) <= sizeof(float))
          out[i] = static_cast<To>(static_cast<float>(in[i]));
        else
          out[i] = static_cast<To>(in[i]);
      }
    });
  });
}

}  // namespace megatron::checkpoint
