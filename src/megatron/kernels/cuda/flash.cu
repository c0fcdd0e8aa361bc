#include "megatron/kernels/cuda/driver.cuh"
#include "megatron/kernels/phases/flash/bias_gradient.h"
#include "megatron/kernels/phases/flash/forward.h"
#include "megatron/kernels/phases/flash/key_gradient.h"
#include "megatron/kernels/phases/flash/query_gradient.h"

#define OF_BOTH_TYPES(name)                                     \
  MEGATRON_DEVICE_KERNEL(name<megatron::kernels::phases::Bf16>) \
  MEGATRON_DEVICE_KERNEL(name<megatron::kernels::phases::Fp16>)
#define OF_BOTH_TYPES_AND_SIZES(name, ...)                                                      \
  MEGATRON_DEVICE_KERNEL(name<megatron::kernels::phases::Bf16, 64 __VA_OPT__(, ) __VA_ARGS__>)  \
  MEGATRON_DEVICE_KERNEL(name<megatron::kernels::phases::Bf16, 128 __VA_OPT__(, ) __VA_ARGS__>) \
  MEGATRON_DEVICE_KERNEL(name<megatron::kernels::phases::Fp16, 64 __VA_OPT__(, ) __VA_ARGS__>)  \
  MEGATRON_DEVICE_KERNEL(name<megatron::kernels::phases::Fp16, 128 __VA_OPT__(, ) __VA_ARGS__>)
#define OF_BOTH_TYPES_WIDE(name)                                            \
  MEGATRON_DEVICE_KERNEL(name<megatron::kernels::phases::Bf16, 256, false>) \
  MEGATRON_DEVICE_KERNEL(name<megatron::kernels::phases::Fp16, 256, false>)

OF_BOTH_TYPES(FlashDelta)
OF_BOTH_TYPES_AND_SIZES(FlashForward, false)
OF_BOTH_TYPES_AND_SIZES(FlashForward, true)
OF_BOTH_TYPES_WIDE(FlashForward)
OF_BOTH_TYPES_AND_SIZES(FlashQueryGradient, false)
OF_BOTH_TYPES_AND_SIZES(FlashQueryGradient, true)
OF_BOTH_TYPES_WIDE(FlashQueryGradient)
OF_BOTH_TYPES_AND_SIZES(FlashKeyGradient, false)
OF_BOTH_TYPES_AND_SIZES(FlashKeyGradient, true)
OF_BOTH_TYPES_WIDE(FlashKeyGradient)
OF_BOTH_TYPES_AND_SIZES(FlashBiasGradient)
MEGATRON_DEVICE_KERNEL(FlashBiasSum)
