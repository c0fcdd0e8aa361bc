#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "megatron/comm/group.h"
#include "megatron/model/decoding/decode.h"
#include "megatron/model/stage_modules.h"

namespace megatron::model {

/// Where one new token of each of b sequences stands.
struct TokenPlaces {
  at::Tensor position_b;    ///< [b] int64 in their sequences
  at::Tensor first_key_b;   ///< [b] int32: the first row of the cache that each sees; undefined: 0
  std::int64_t length = 0;  ///< rows of the cache that are filled
};

/// Whether run_token() takes x [s, b, h]: one token of each of few sequences, on the CPU.
bool takes_token(const StageModules& modules, const at::Tensor& x_sbh);

/// What StageModules::run() gives for x [1, b, h] with attention over the cache's rows and itself, to the bit: in
/// buffers made once for all blocks, without a tensor for each operator's value (kernels/decode.h). Writes row `length`
/// of each block's keys and values [capacity, b, g/t, d]. Collective over tp.
Normed run_token(const StageModules& modules, const comm::Group& tp, const at::Tensor& x_1bh, const TokenPlaces& places,
                 const std::vector<at::Tensor>& keys, const std::vector<at::Tensor>& values);

/// run_token() where sequence b has blocks of its own in one pool, to which the token is added: what each gets is, to
/// the bit, what it would get alone. The caches' lengths stay. position_b [b] int64.
Normed run_token_of_each(const StageModules& modules, const comm::Group& tp, const at::Tensor& x_1bh,
                         const at::Tensor& position_b, std::span<PagedCache* const> caches);

}  // namespace megatron::model
