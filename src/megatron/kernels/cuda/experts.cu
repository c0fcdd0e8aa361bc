#include "megatron/kernels/cuda/driver.cuh"
#include "megatron/kernels/phases/experts.h"

MEGATRON_DEVICE_KERNEL_OF_EVERY_DTYPE(WeightedActivation)
MEGATRON_DEVICE_KERNEL_OF_EVERY_DTYPE(CombineRows)
