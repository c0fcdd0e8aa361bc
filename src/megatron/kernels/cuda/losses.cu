#include "megatron/kernels/cuda/driver.cuh"
#include "megatron/kernels/phases/cross_entropy.h"
#include "megatron/kernels/phases/optimizer.h"

MEGATRON_DEVICE_KERNEL_OF_EVERY_DTYPE(SoftmaxPieces)
MEGATRON_DEVICE_KERNEL_OF_EVERY_DTYPE(CrossEntropyGradient)
MEGATRON_DEVICE_KERNEL_OF_EVERY_DTYPE(Reduce)
MEGATRON_DEVICE_KERNEL(UpdateParameters<float>)
MEGATRON_DEVICE_KERNEL(UpdateParameters<double>)
