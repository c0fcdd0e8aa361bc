#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "megatron/data/columns/rows.h"

namespace megatron::data {

enum class Codec : std::uint8_t { None, Snappy, Gzip, Zstd, Lz4Block, Lz4Frame };

/// Unpacks `packed`, which stands at byte `offset` of the file, into exactly `size` bytes of `out`. Throws ConfigError
/// where it is damaged or comes to another size. Takes no more memory than what the packed bytes really hold.
void unpack(Codec codec, std::span<const std::byte> packed, std::uint64_t size, const ColumnFile& file,
            std::uint64_t offset, std::vector<std::byte>& out);

}  // namespace megatron::data
