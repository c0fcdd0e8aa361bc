#include "rows.h"

#include "megatron/data/columns/rows.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return read_rows(data, size, megatron::data::open_arrow);
}
