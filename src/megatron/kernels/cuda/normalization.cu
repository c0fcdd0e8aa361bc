#include "megatron/kernels/cuda/driver.cuh"
#include "megatron/kernels/phases/copy.h"
#include "megatron/kernels/phases/dropout.h"
#include "megatron/kernels/phases/norms/column_sums.h"
#include "megatron/kernels/phases/norms/norm_gradient.h"
#include "megatron/kernels/phases/norms/normalization.h"

MEGATRON_DEVICE_KERNEL_OF_EVERY_DTYPE(AddNorm)
MEGATRON_DEVICE_KERNEL_OF_EVERY_DTYPE(NormInputGradient)
MEGATRON_DEVICE_KERNEL_OF_EVERY_DTYPE(AddNormGradient)
MEGATRON_DEVICE_KERNEL_OF_EVERY_DTYPE(ColumnSums)
MEGATRON_DEVICE_KERNEL_OF_EVERY_DTYPE(BiasDropoutAdd)
MEGATRON_DEVICE_KERNEL_OF_EVERY_DTYPE(WriteMask)
MEGATRON_DEVICE_KERNEL_OF_EVERY_DTYPE(CopyHeads)
MEGATRON_DEVICE_KERNEL(FinishColumnSums)
