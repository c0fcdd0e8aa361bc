#pragma once
#include <c10/core/Device.h>

namespace megatron::testing {

/// Prints a line of JSON for a copy and for each kernel: how many of the bytes that it must read and write it moves per
/// second on `device`, at the sizes of a layer of a GPT 1.3B; on a CPU small ones, by the host drivers. Of attention it
/// is how many operations it does, "tflop_s" in place of "gb_s".
void print_rates(at::Device device);

}  // namespace megatron::testing
