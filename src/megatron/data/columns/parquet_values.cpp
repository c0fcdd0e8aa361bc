#include "megatron/data/columns/parquet_values.h"

#include <algorithm>
#include <cstring>

#include "megatron/base/error.h"

namespace megatron::data {
namespace {

using Bytes = std::span<const std::byte>;

// Encodings.
enum : std::int64_t {
  kPlainValues = 0,
  kPlainDictionary = 2,
  kRunLength = 3,
  kDeltaNumbers = 5,
  kDeltaLengths = 6,
  kDeltaTexts = 7,
  kDictionary = 8
};

std::uint64_t varint(Bytes& bytes, const ParquetPage& page) {
  std::uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (bytes.empty()) page.wrong("a page must be whole.", "its end");
    const auto byte = std::to_integer<std::uint64_t>(bytes.front());
    bytes = bytes.subspan(1);
    value |= (byte & 127) << shift;
    if (byte < 128) return value;
  }
  page.wrong("a number must have at most 64 bits.", "more");
}

std::uint64_t zigzag(std::uint64_t value) { return (value >> 1) ^ (~(value & 1) + 1); }

/// `width` bits from bit `at` on; those beyond the end are 0.
std::uint64_t bits_at(Bytes bytes, std::uint64_t at, int width) {
  std::uint64_t value = 0;
  int have = 0;
  for (std::uint64_t byte = at / 8; have < width && byte < bytes.size(); ++byte) {
    const int skipped = byte == at / 8 ? static_cast<int>(at % 8) : 0;
    value |= (std::to_integer<std::uint64_t>(bytes[static_cast<std::size_t>(byte)]) >> skipped) << have;
    have += 8 - skipped;
  }
  return width == 64 ? value : value & ((std::uint64_t{1} << width) - 1);
}

}  // namespace

void HybridDecoder::begin_run(const ParquetPage& page) {
  const std::uint64_t head = varint(rest_, page);
  is_packed_ = (head & 1) != 0;
  const std::uint64_t bytes_of_value = (static_cast<std::uint64_t>(bits_) + 7) / 8;
  if (is_packed_) {
    const std::uint64_t groups = head >> 1;
    if (groups > (std::uint64_t{1} << 32)) page.wrong("a run must be a sensible one.", concat(groups, " groups"));
    const std::uint64_t size = std::min<std::uint64_t>(groups * static_cast<std::uint64_t>(bits_), rest_.size());
    packed_ = rest_.first(static_cast<std::size_t>(size));
    rest_ = rest_.subspan(static_cast<std::size_t>(size));
    left_ = bits_ == 0 ? groups * 8 : std::min(groups * 8, size * 8 / static_cast<std::uint64_t>(bits_));
    bit_ = 0;
    return;
  }
  left_ = head >> 1;
  if (bytes_of_value > rest_.size()) page.wrong("a page must be whole.", "its end");
  value_ = static_cast<std::uint32_t>(bits_at(rest_, 0, static_cast<int>(bytes_of_value) * 8));
  rest_ = rest_.subspan(static_cast<std::size_t>(bytes_of_value));
}

std::uint32_t HybridDecoder::next(const ParquetPage& page) {
  while (left_ == 0) begin_run(page);  // each takes a byte at least
  --left_;
  if (!is_packed_) return value_;
  const auto value = static_cast<std::uint32_t>(bits_at(packed_, bit_, bits_));
  bit_ += static_cast<std::uint64_t>(bits_);
  return value;
}

DeltaDecoder::DeltaDecoder(Bytes bytes, const ParquetPage& page) : rest_(bytes) {
  const std::uint64_t block = varint(rest_, page);
  parts_ = varint(rest_, page);
  left_ = varint(rest_, page);
  value_ = zigzag(varint(rest_, page));
  if (block == 0 || block > 1 << 20 || parts_ == 0 || parts_ > kMaxParts || block % parts_ != 0 ||
      (block / parts_) % 8 != 0)
    page.wrong("blocks of differences must be of equal parts of whole bytes.", concat(block, " in ", parts_));
  part_values_ = block / parts_;
  part_ = parts_;
}

void DeltaDecoder::begin_block(const ParquetPage& page) {
  smallest_ = zigzag(varint(rest_, page));
  if (rest_.size() < parts_) page.wrong("a page must be whole.", "its end");
  for (std::size_t i = 0; i < parts_; ++i) widths_[i] = std::to_integer<std::uint8_t>(rest_[i]);
  rest_ = rest_.subspan(static_cast<std::size_t>(parts_));
  part_ = 0;
}

void DeltaDecoder::begin_part(const ParquetPage& page) {
  if (part_ == parts_) begin_block(page);
  const std::uint64_t width = widths_[static_cast<std::size_t>(part_++)];
  const std::uint64_t size = width * part_values_ / 8;
  if (width > 64 || size > rest_.size()) page.wrong("a page must be whole.", "its end");
  packed_ = rest_.first(static_cast<std::size_t>(size));
  rest_ = rest_.subspan(static_cast<std::size_t>(size));
  in_part_ = 0;
}

std::int64_t DeltaDecoder::next(const ParquetPage& page) {
  if (left_ == 0) page.wrong("a page must have all of its values.", "fewer");
  --left_;
  if (is_first_) {
    is_first_ = false;
    in_part_ = part_values_;
    return static_cast<std::int64_t>(value_);
  }
  if (in_part_ == part_values_) begin_part(page);
  const int width = widths_[static_cast<std::size_t>(part_ - 1)];
  value_ += smallest_ + bits_at(packed_, in_part_ * static_cast<std::uint64_t>(width), width);
  ++in_part_;
  return static_cast<std::int64_t>(value_);
}

Bytes DeltaDecoder::behind(const ParquetPage& page) const {
  DeltaDecoder copy = *this;
  for (std::uint64_t after = left_ == 0 ? 0 : left_ - 1; after > 0; after -= std::min(after, part_values_))
    copy.begin_part(page);
  return copy.rest_;
}

Bytes ParquetValues::take(std::uint64_t bytes, const ParquetPage& page) {
  if (bytes > rest_.size()) page.wrong("a page must have all of its values.", "its end");
  const Bytes taken = rest_.first(static_cast<std::size_t>(bytes));
  rest_ = rest_.subspan(static_cast<std::size_t>(bytes));
  return taken;
}

void ParquetValues::start(const ParquetPage& page, const ParquetLeaf& leaf, std::int64_t encoding, Bytes bytes,
                          const ParquetValues* dictionary) {
  physical_ = leaf.physical;
  rest_ = bytes;
  bit_ = 0;
  dictionary_ = dictionary;
  switch (encoding) {
    case kPlainValues:
      how_ = How::Plain;
      return;
    case kPlainDictionary:
    case kDictionary: {
      how_ = How::Dictionary;
      if (dictionary == nullptr) page.wrong("a dictionary must come before what refers to it.", "none");
      if (bytes.empty()) return;  // a page of nulls
      const auto width = std::to_integer<int>(take(1, page)[0]);
      if (width > 32) page.wrong("an index must have at most 32 bits.", concat(width));
      runs_ = HybridDecoder(rest_, width);
      return;
    }
    case kRunLength: {
      if (physical_ != Physical::Boolean) break;
      how_ = How::Runs;
      if (bytes.empty()) return;
      const Bytes size = take(4, page);
      std::uint32_t count = 0;
      std::memcpy(&count, size.data(), sizeof count);
      runs_ = HybridDecoder(take(count, page), 1);
      return;
    }
    case kDeltaNumbers:
      if (physical_ != Physical::Int32 && physical_ != Physical::Int64) break;
      how_ = How::Delta;
      if (!bytes.empty()) numbers_ = DeltaDecoder(bytes, page);
      return;
    case kDeltaLengths:
    case kDeltaTexts:
      if (physical_ != Physical::ByteArray) break;
      how_ = encoding == kDeltaLengths ? How::DeltaLengths : How::DeltaTexts;
      if (bytes.empty()) return;
      if (how_ == How::DeltaTexts) {
        prefixes_ = DeltaDecoder(rest_, page);
        rest_ = prefixes_.behind(page);
        whole_.clear();
      }
      numbers_ = DeltaDecoder(rest_, page);
      rest_ = numbers_.behind(page);
      return;
    default:
      break;
  }
  page.file.not_read("pages must be encoded as plain, by dictionary, run length or differences.",
                     encoding == 9 ? "byte stream split" : concat("encoding ", encoding));
}

void ParquetValues::next_plain(const ParquetPage& page) {
  switch (physical_) {
    case Physical::Boolean:
      if (bit_ / 8 >= rest_.size()) page.wrong("a page must have all of its values.", "its end");
      bits_ = bits_at(rest_, bit_++, 1);
      return;
    case Physical::Int32:
    case Physical::Float: {
      std::uint32_t value = 0;
      std::memcpy(&value, take(sizeof value, page).data(), sizeof value);
      bits_ = value;
      return;
    }
    case Physical::ByteArray: {
      std::uint32_t size = 0;
      std::memcpy(&size, take(sizeof size, page).data(), sizeof size);
      const Bytes bytes = take(size, page);
      text_ = {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
      return;
    }
    default:
      std::memcpy(&bits_, take(sizeof bits_, page).data(), sizeof bits_);
  }
}

void ParquetValues::keep_all(const ParquetPage& page, std::int64_t count) {
  texts_.clear();
  all_bits_.clear();
  for (; count > 0; --count) {  // each has bytes in the page
    next_plain(page);
    if (physical_ == Physical::ByteArray)
      texts_.push_back(text_);
    else
      all_bits_.push_back(bits_);
  }
}

void ParquetValues::next(const ParquetPage& page) {
  switch (how_) {
    case How::Plain:
      return next_plain(page);
    case How::Dictionary: {
      const std::size_t index = runs_.next(page);
      if (index >= dictionary_->texts_.size() + dictionary_->all_bits_.size())
        page.wrong("an index must lie in its dictionary.", concat(index));
      if (physical_ == Physical::ByteArray)
        text_ = dictionary_->texts_[index];
      else
        bits_ = dictionary_->all_bits_[index];
      return;
    }
    case How::Runs:
      bits_ = runs_.next(page);
      return;
    case How::Delta:
      bits_ = static_cast<std::uint64_t>(numbers_.next(page));
      return;
    case How::DeltaLengths:
    case How::DeltaTexts: {
      const std::int64_t size = numbers_.next(page);
      if (size < 0) page.wrong("a text must have a length.", concat(size));
      const Bytes bytes = take(static_cast<std::uint64_t>(size), page);
      text_ = {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
      if (how_ == How::DeltaLengths) return;
      const std::int64_t kept = prefixes_.next(page);
      if (kept < 0 || static_cast<std::uint64_t>(kept) > whole_.size() || whole_.size() + bytes.size() > kMaxRowBytes)
        page.wrong("a text must begin as a part of the one before.", concat(kept, " bytes of ", whole_.size()));
      whole_.resize(static_cast<std::size_t>(kept));
      whole_ += text_;
      text_ = whole_;
      return;
    }
  }
}

}  // namespace megatron::data
