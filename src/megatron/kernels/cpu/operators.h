#pragma once
#include "megatron/kernels/operators.h"

// The operators on a CPU: what cpu::fast_as (isa.h) allows by vector kernels, everything else by the reference.
namespace megatron::kernels::cpu {

#define OPERATOR(result, name, parameters, ...) result name parameters;
#include "megatron/kernels/operators.def"

}  // namespace megatron::kernels::cpu
