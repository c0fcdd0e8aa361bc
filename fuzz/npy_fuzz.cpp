#include <cstdint>
#include <span>

#include "megatron/base/error.h"
#include "megatron/data/files/npy.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace megatron;
  try {
    const data::NpyArray array(std::as_bytes(std::span(data, size)), "input");
    std::int64_t sum = 0;
    for (std::int64_t i = 0; i < array.size(); ++i) sum ^= array[i];
    std::int64_t product = 1;
    for (const std::int64_t n : array.shape()) product *= n;
    if (product != array.size()) __builtin_trap();
    static_cast<void>(sum);
  } catch (const ConfigError&) {
  }
  return 0;
}
