#include "megatron/data/columns/unpack.h"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>

#include "megatron/base/error.h"

namespace megatron::data {
namespace {

using Bytes = std::span<const std::byte>;

/// Takes bytes off the front of the packed ones; `ok` turns false where they end too soon.
struct Input {
  Bytes rest;
  bool ok = true;

  std::uint32_t byte() {
    if (rest.empty()) {
      ok = false;
      return 0;
    }
    const auto value = std::to_integer<std::uint32_t>(rest.front());
    rest = rest.subspan(1);
    return value;
  }
  std::uint32_t little(int bytes) {
    std::uint32_t value = 0;
    for (int i = 0; i < bytes; ++i) value |= byte() << (8 * i);
    return value;
  }
  Bytes take(std::uint64_t count) {
    if (count > rest.size()) {
      ok = false;
      return {};
    }
    const Bytes taken = rest.first(static_cast<std::size_t>(count));
    rest = rest.subspan(static_cast<std::size_t>(count));
    return taken;
  }
};

/// What the packed bytes come to: at most `size` bytes.
class Output {
 public:
  Output(std::vector<std::byte>& bytes, std::uint64_t size) : bytes_(bytes), size_(size) { bytes_.clear(); }

  /// False where there would be more than announced.
  bool add(Bytes bytes) {
    if (bytes.size() > room()) return false;
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    return true;
  }
  /// Again `count` of the bytes that stand `distance` before the end, which may be among those that this adds.
  bool repeat(std::uint64_t distance, std::uint64_t count) {
    if (distance == 0 || distance > bytes_.size() || count > room()) return false;
    const std::size_t end = bytes_.size(), from = end - static_cast<std::size_t>(distance);
    bytes_.resize(end + static_cast<std::size_t>(count));
    if (distance >= count)
      std::memcpy(bytes_.data() + end, bytes_.data() + from, static_cast<std::size_t>(count));
    else
      for (std::size_t i = 0; i < count; ++i) bytes_[end + i] = bytes_[from + i];
    return true;
  }
  std::uint64_t room() const { return size_ - bytes_.size(); }

 private:
  std::vector<std::byte>& bytes_;
  std::uint64_t size_;
};

/// Snappy's raw format: the size, then literals and copies.
bool snappy(Input in, Output& out, std::uint64_t size) {
  std::uint64_t announced = 0;
  for (int shift = 0;; shift += 7) {
    const std::uint32_t byte = in.byte();
    announced |= static_cast<std::uint64_t>(byte & 127) << shift;
    if (byte < 128) break;
    if (shift == 28) return false;
  }
  if (!in.ok || announced != size) return false;
  while (!in.rest.empty()) {
    const std::uint32_t tag = in.byte();
    if ((tag & 3) == 0) {
      std::uint64_t length = tag >> 2;
      if (length >= 60) length = in.little(static_cast<int>(length) - 59);
      const Bytes literal = in.take(length + 1);
      if (!in.ok || !out.add(literal)) return false;
      continue;
    }
    std::uint64_t length = (tag >> 2) + 1, distance = 0;
    if ((tag & 3) == 1) {
      length = ((tag >> 2) & 7) + 4;
      distance = (static_cast<std::uint64_t>(tag >> 5) << 8) | in.byte();
    } else {
      distance = in.little((tag & 3) == 2 ? 2 : 4);
    }
    if (!in.ok || !out.repeat(distance, length)) return false;
  }
  return true;
}

/// A length of LZ4 that began with 15: bytes are added up to the first that is not 255.
std::uint64_t lz4_length(Input& in, std::uint64_t begin) {
  if (begin != 15) return begin;
  for (std::uint32_t byte = 255; byte == 255 && in.ok;) begin += byte = in.byte();
  return begin;
}

/// A block of LZ4: literals and copies in turn; it ends after literals.
bool lz4_block(Input in, Output& out) {
  while (!in.rest.empty()) {
    const std::uint32_t token = in.byte();
    const Bytes literal = in.take(lz4_length(in, token >> 4));
    if (!in.ok || !out.add(literal)) return false;
    if (in.rest.empty()) return true;
    const std::uint64_t distance = in.little(2);
    const std::uint64_t length = lz4_length(in, token & 15) + 4;
    if (!in.ok || !out.repeat(distance, length)) return false;
  }
  return false;
}

/// LZ4's frames, one after another: a head, blocks, a mark of the end. Their checksums are ignored: Arrow writes
/// none.
bool lz4_frames(Input in, Output& out) {
  while (!in.rest.empty()) {
    if (in.little(4) != 0x184D2204) return false;
    const std::uint32_t flags = in.byte();
    in.byte();                                              // the size of blocks
    if (flags >> 6 != 1 || (flags & 1) != 0) return false;  // another version, or a dictionary that is not here
    in.take((flags & 8) != 0 ? 8 : 0);                      // the size of the content
    in.byte();                                              // the head's checksum
    while (in.ok) {
      const std::uint32_t block = in.little(4);
      if (!in.ok || block == 0) break;
      const Bytes bytes = in.take(block & 0x7FFFFFFF);
      if (!in.ok) return false;
      if ((block & 0x80000000) != 0 ? !out.add(bytes) : !lz4_block({bytes}, out)) return false;
      in.take((flags & 16) != 0 ? 4 : 0);
    }
    in.take((flags & 4) != 0 ? 4 : 0);
    if (!in.ok) return false;
  }
  return true;
}

/// Members of gzip, or zlib's format, which some writers take for it.
bool gzip(Bytes packed, Output& out) {
  z_stream stream{};
  constexpr int kEither = 32;
  if (::inflateInit2(&stream, MAX_WBITS + kEither) != Z_OK) throw std::runtime_error("zlib: out of memory");
  const std::unique_ptr<z_stream, int (*)(z_stream*)> end(&stream, ::inflateEnd);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(packed.data()));
  stream.avail_in = static_cast<uInt>(packed.size());  // < 2^31: see unpack()
  std::vector<std::byte> piece(1 << 16);
  while (true) {
    stream.next_out = reinterpret_cast<Bytef*>(piece.data());
    stream.avail_out = static_cast<uInt>(piece.size());
    const int status = ::inflate(&stream, Z_NO_FLUSH);
    if (status != Z_OK && status != Z_STREAM_END) return false;
    if (!out.add(std::span(piece).first(piece.size() - stream.avail_out))) return false;
    if (status != Z_STREAM_END) continue;
    if (stream.avail_in == 0) return true;
    ::inflateReset(&stream);
  }
}

bool zstd(Bytes packed, Output& out) {
  struct Free {
    void operator()(ZSTD_DStream* stream) const { ::ZSTD_freeDStream(stream); }
  };
  const std::unique_ptr<ZSTD_DStream, Free> stream(::ZSTD_createDStream());
  std::vector<std::byte> piece(1 << 17);
  ZSTD_inBuffer in{packed.data(), packed.size(), 0};
  std::size_t status = 1;
  while (in.pos < in.size || status != 0) {
    ZSTD_outBuffer to{piece.data(), piece.size(), 0};
    const std::size_t before = in.pos;
    status = ::ZSTD_decompressStream(stream.get(), &to, &in);
    if (::ZSTD_isError(status) != 0 || !out.add(std::span(piece).first(to.pos))) return false;
    if (in.pos == before && to.pos == 0) return false;  // breaks off
  }
  return true;
}

}  // namespace

void unpack(Codec codec, std::span<const std::byte> packed, std::uint64_t size, const ColumnFile& file,
            std::uint64_t offset, std::vector<std::byte>& out) {
  if (size > kMaxRowBytes || packed.size() > kMaxRowBytes)
    file.damaged(offset, concat("compressed data may have at most ", kMaxRowBytes, " bytes."),
                 concat(std::max<std::uint64_t>(size, packed.size())));
  Output output(out, size);
  if (size == 0 && packed.empty()) return;
  out.reserve(static_cast<std::size_t>(std::min<std::uint64_t>(size, packed.size() * 8)));
  bool whole = true;
  switch (codec) {
    case Codec::None:
      whole = output.add(packed);
      break;
    case Codec::Snappy:
      whole = snappy({packed}, output, size);
      break;
    case Codec::Gzip:
      whole = gzip(packed, output);
      break;
    case Codec::Zstd:
      whole = zstd(packed, output);
      break;
    case Codec::Lz4Block:
      whole = lz4_block({packed}, output);
      break;
    case Codec::Lz4Frame:
      whole = lz4_frames({packed}, output);
      break;
  }
  if (!whole || output.room() != 0)
    file.damaged(offset, concat("compressed data must be whole and come to ", size, " bytes."),
                 whole ? concat(size - output.room()) : "a broken stream");
}

}  // namespace megatron::data
