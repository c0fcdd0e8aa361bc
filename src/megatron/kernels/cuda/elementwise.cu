#include "megatron/kernels/cuda/driver.cuh"
#include "megatron/kernels/phases/activation.h"
#include "megatron/kernels/phases/embedding.h"
#include "megatron/kernels/phases/rope.h"

MEGATRON_DEVICE_KERNEL_OF_EVERY_DTYPE(Activate)
MEGATRON_DEVICE_KERNEL_OF_EVERY_DTYPE(Embed)
MEGATRON_DEVICE_KERNEL_OF_EVERY_DTYPE(EmbedGradient)
MEGATRON_DEVICE_KERNEL_OF_EVERY_DTYPE(Rotate)
