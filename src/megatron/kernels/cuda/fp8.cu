#include "megatron/kernels/cuda/driver.cuh"
#include "megatron/kernels/phases/fp8/magnitudes.h"
#include "megatron/kernels/phases/fp8/tiles.h"

#define MEGATRON_FP8_TILES(T)             \
  MEGATRON_DEVICE_KERNEL(Fp8Tiles<T, 32>) \
  MEGATRON_DEVICE_KERNEL(Fp8Tiles<T, 128>)

MEGATRON_DEVICE_KERNEL_OF_EVERY_DTYPE(Fp8Maxima)
MEGATRON_DEVICE_KERNEL(Fp8Largest)
MEGATRON_DEVICE_KERNEL(Fp8ScaleOf)
MEGATRON_FP8_TILES(float)
MEGATRON_FP8_TILES(double)
MEGATRON_FP8_TILES(megatron::kernels::phases::Bf16)
MEGATRON_FP8_TILES(megatron::kernels::phases::Fp16)
