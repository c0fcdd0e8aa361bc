#include "megatron/kernels/token/token.h"

#include "megatron/base/error.h"
#include "megatron/kernels/runtime.h"

namespace megatron::kernels {
namespace {

const TokenKernels* plugins_token_kernels = nullptr;  // set before any rank starts

}  // namespace

Replay::~Replay() = default;

std::int64_t token_scratch(std::int64_t batch, std::int64_t heads, std::int64_t head_size, std::int64_t capacity) {
  const std::int64_t parts = (capacity + kTokenPartKeys - 1) / kTokenPartKeys;
  return batch * heads * parts * (head_size + 2);
}

std::vector<std::optional<Shortlist>> shortlists_of(const at::Tensor& list) {
  const at::Tensor on_host = list.cpu();
  const std::int64_t room = (list.size(1) - 2) / 2;
  std::vector<std::optional<Shortlist>> all;
  for (std::int64_t b = 0; b < list.size(0); ++b) {
    const double* const row = on_host.const_data_ptr<double>() + b * list.size(1);
    const auto count = static_cast<std::int64_t>(row[0]);
    if (count < 0) {
      all.emplace_back();
      continue;
    }
    const double *const logits = row + 2, *const ids = logits + room;
    Shortlist& one = all.emplace_back().emplace();
    one.tokens.assign(ids, ids + count);
    one.logits.assign(logits, logits + count);
    one.all = row[1];
  }
  return all;
}

const TokenKernels* token_kernels(at::Device device) {
  if (!device.is_cpu()) return plugins_token_kernels;
  return emulates_cuda() ? &emulated_token_kernels() : nullptr;
}

void set_cuda_token_kernels(const TokenKernels& plugin, std::size_t size) {
  if (size != sizeof(TokenKernels))
    throw ConfigError(rule_got_fix("The CUDA plugin must be of the same source as the program.",
                                   concat("kernels of ", size, " bytes, not ", sizeof(TokenKernels)),
                                   "build both again: make"));
  plugins_token_kernels = &plugin;
}

}  // namespace megatron::kernels
