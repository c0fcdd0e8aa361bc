#include "megatron/kernels/cuda/driver.cuh"
#include "megatron/kernels/phases/attention.h"
#include "megatron/kernels/phases/attention_backward.h"

#define OF_BOTH_PRECISIONS(name)           \
  MEGATRON_DEVICE_KERNEL(name<float, 64>)  \
  MEGATRON_DEVICE_KERNEL(name<float, 128>) \
  MEGATRON_DEVICE_KERNEL(name<double, 64>)

OF_BOTH_PRECISIONS(AttentionForward)
OF_BOTH_PRECISIONS(AttentionQueryGradient)
OF_BOTH_PRECISIONS(AttentionKeyGradient)
MEGATRON_DEVICE_KERNEL(AttentionDelta<float>)
MEGATRON_DEVICE_KERNEL(AttentionDelta<double>)
MEGATRON_DEVICE_KERNEL(AttentionBiasGradient<float>)
MEGATRON_DEVICE_KERNEL(AttentionBiasGradient<double>)
