#include "megatron/interchange/stored_tensor.h"

#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>

#include <cstring>
#include <map>
#include <memory>

#include "megatron/base/error.h"
#include "megatron/checkpoint/files/safetensors.h"

namespace megatron::interchange {

at::ScalarType scalar_type(const std::string& name, const std::string& where) {
  static const std::map<std::string, at::ScalarType> types = {
      {"float64", at::kDouble}, {"float32", at::kFloat}, {"float16", at::kHalf}, {"bfloat16", at::kBFloat16},

      {"F64", at::kDouble},     {"F32", at::kFloat},     {"F16", at::kHalf},     {"BF16", at::kBFloat16},
      {"I64", at::kLong},       {"I32", at::kInt},       {"I16", at::kShort},    {"I8", at::kChar},
      {"U8", at::kByte},        {"BOOL", at::kBool}};
  const auto found = types.find(name);
  if (found == types.end())
    throw ConfigError(rule_got_fix(concat(where, " must be of a dtype that this program computes with."), name,
                                   "convert the file to float32, bfloat16 or float16"));
  return found->second;
}

void read_stored(const StoredTensor& stored, const checkpoint::Box& box, const at::Tensor& into,
                 const std::string& where) {
  const at::ScalarType type = scalar_type(stored.dtype, where);
  if (into.numel() == 0) return;
  std::vector<std::int64_t> strides = stored.strides;
  if (strides.empty()) {
    strides.assign(stored.shape.size(), 1);
    for (std::size_t d = strides.size(); d-- > 1;) strides[d - 1] = strides[d] * stored.shape[d];
  }
  std::int64_t first = 0, span = 1;  // elements: where the box begins, and how far it reaches
  for (std::size_t d = 0; d < strides.size(); ++d) {
    first += box.offset[d] * strides[d];
    span += (box.shape[d] - 1) * strides[d];
  }
  const std::uint64_t width = checkpoint::dtype_bytes(stored.dtype);
  const std::span<const std::byte> bytes =
      stored.bytes.subspan(static_cast<std::size_t>(first) * width, static_cast<std::size_t>(span) * width);
  std::unique_ptr<std::byte[]> aligned;
  const std::byte* data = bytes.data();
  if (reinterpret_cast<std::uintptr_t>(data) % width != 0) {
    aligned = std::make_unique_for_overwrite<std::byte[]>(bytes.size());
    std::memcpy(aligned.get(), bytes.data(), bytes.size());
    data = aligned.get();
  }
  const c10::NoGradGuard no_grad;
  into.detach().copy_(at::from_blob(const_cast<std::byte*>(data), box.shape, strides, at::TensorOptions(type)));
}

}  // namespace megatron::interchange
