#include "megatron/kernels/cuda/driver.cuh"
#include "megatron/kernels/phases/token_attention.h"
#include "megatron/kernels/phases/token_draw.h"
#include "megatron/kernels/phases/token_ends.h"
#include "megatron/kernels/phases/token_norm.h"
#include "megatron/kernels/phases/token_product.h"
#include "megatron/kernels/phases/token_shortlist.h"

#define OF_EVERY_NUMBER_OF_ROWS(type)           \
  MEGATRON_DEVICE_KERNEL(TokenProduct<type, 1>) \
  MEGATRON_DEVICE_KERNEL(TokenProduct<type, 4>) \
  MEGATRON_DEVICE_KERNEL(TokenProduct<type, 8>)
#define OF_BOTH_KINDS_OF_GROUPS(type)             \
  MEGATRON_DEVICE_KERNEL(TokenAttention<type, 1>) \
  MEGATRON_DEVICE_KERNEL(TokenAttention<type, 8>)

OF_EVERY_NUMBER_OF_ROWS(float)
OF_EVERY_NUMBER_OF_ROWS(megatron::kernels::phases::Bf16)
OF_EVERY_NUMBER_OF_ROWS(megatron::kernels::phases::Fp16)
MEGATRON_DEVICE_KERNEL(TokenProduct<double, 1>)
OF_BOTH_KINDS_OF_GROUPS(float)
OF_BOTH_KINDS_OF_GROUPS(double)
OF_BOTH_KINDS_OF_GROUPS(megatron::kernels::phases::Bf16)
OF_BOTH_KINDS_OF_GROUPS(megatron::kernels::phases::Fp16)
MEGATRON_DEVICE_KERNEL_OF_EVERY_DTYPE(TokenAttentionEnd)
MEGATRON_DEVICE_KERNEL_OF_EVERY_DTYPE(TokenEmbedding)
MEGATRON_DEVICE_KERNEL_OF_EVERY_DTYPE(TokenChoice)
MEGATRON_DEVICE_KERNEL_OF_EVERY_DTYPE(TokenDraw)
MEGATRON_DEVICE_KERNEL_OF_EVERY_DTYPE(TokenShortlist)
MEGATRON_DEVICE_KERNEL_OF_EVERY_DTYPE(TokenNorm)
