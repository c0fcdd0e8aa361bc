#include "megatron/data/columns/arrow_batch.h"

#include <algorithm>

#include "megatron/base/error.h"
#include "megatron/data/columns/json_text.h"
#include "megatron/data/columns/unpack.h"

namespace megatron::data {
namespace {

using Bytes = std::span<const std::byte>;

constexpr std::uint64_t kMaxLength = std::uint64_t{1} << 48;
constexpr std::int64_t kMaxUnpacked = std::int64_t{1} << 32;  // of a batch: its buffers may be the same few bytes

/// A whole number of `width` bytes.
std::uint64_t whole_number(const std::byte* from, int width, bool is_signed) {
  switch (width) {
    case 1:
      return is_signed ? static_cast<std::uint64_t>(FlatTable::read<std::int8_t>(from))
                       : FlatTable::read<std::uint8_t>(from);
    case 2:
      return is_signed ? static_cast<std::uint64_t>(FlatTable::read<std::int16_t>(from))
                       : FlatTable::read<std::uint16_t>(from);
    case 4:
      return is_signed ? static_cast<std::uint64_t>(FlatTable::read<std::int32_t>(from))
                       : FlatTable::read<std::uint32_t>(from);
    default:
      return FlatTable::read<std::uint64_t>(from);
  }
}

bool bit(Bytes bits, std::uint64_t index) {
  return ((std::to_integer<unsigned>(bits[static_cast<std::size_t>(index / 8)]) >> (index % 8)) & 1) != 0;
}

/// Takes the nodes and buffers of a batch in the order of its fields.
class BatchReader {
 public:
  BatchReader(const FlatTable& batch, std::uint64_t body, Bytes bytes, const ColumnFile& file, ArrowBatch& out)
      : file_(file),
        body_(body),
        bytes_(bytes),
        nodes_(batch.vector(1, 16)),
        buffers_(batch.vector(2, 16)),
        variadic_(batch.vector(4, 8)),
        out_(out) {
    if (const auto compression = batch.table(3)) {
      const int codec = compression->number<std::int8_t>(0, 0);
      if (codec != 0 && codec != 1) file.not_read("buffers must be compressed by lz4 or zstd.", concat(codec));
      codec_ = codec == 0 ? Codec::Lz4Frame : Codec::Zstd;
    }
  }

  ArrowArray read(const ArrowField& field, bool values) {
    ArrowArray array;
    const bool indices = field.dictionary && !values;
    const bool shown = field.is_shown();
    array.length = node();
    const int count = indices ? 2 : field.buffers;
    for (int i = 0; i < count; ++i) {
      Bytes& place = i == 0 && field.kind != ArrowKind::Left ? array.validity : array.first;
      (i == 2 ? array.second : place) = buffer(shown);
    }
    if (field.variadic && !indices)
      for (std::uint64_t more = variadic_count(); more > 0; --more) array.more.push_back(buffer(shown));
    if (!indices)
      for (const ArrowField& child : field.children) array.children.push_back(read(child, false));
    if (shown) check(field, array, indices);
    return array;
  }

 private:
  [[noreturn]] void wrong(const std::string& rule, const std::string& got) const { file_.damaged(body_, rule, got); }

  std::uint64_t node() {
    if (nodes_.size() < 16) wrong("a batch must have a length for each column.", "too few");
    const auto length = FlatTable::read<std::uint64_t>(nodes_.data());
    nodes_ = nodes_.subspan(16);
    if (length > kMaxLength) wrong("a column's length must be a sensible one.", concat(length));
    return length;
  }

  Bytes buffer(bool wanted) {
    if (buffers_.size() < 16) wrong("a batch must have every buffer of each column.", "too few");
    const auto offset = FlatTable::read<std::uint64_t>(buffers_.data());
    const auto size = FlatTable::read<std::uint64_t>(buffers_.data() + 8);
    buffers_ = buffers_.subspan(16);
    if (offset > bytes_.size() || size > bytes_.size() - offset)
      wrong("a buffer must lie in its batch.", concat(size, " bytes at ", offset, " of ", bytes_.size()));
    const Bytes stored = bytes_.subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(size));
    if (!wanted || stored.empty() || codec_ == Codec::None) return stored;
    if (stored.size() < 8) wrong("a compressed buffer must begin with its size.", concat(stored.size(), " bytes"));
    const auto whole = FlatTable::read<std::int64_t>(stored.data());
    if (whole == -1) return stored.subspan(8);
    unpacked_bytes_ +=
        static_cast<std::uint64_t>(std::min<std::int64_t>(whole < 0 ? kMaxUnpacked : whole, kMaxUnpacked));
    if (unpacked_bytes_ > static_cast<std::uint64_t>(kMaxUnpacked))
      wrong(concat("a batch may unpack to at most ", kMaxUnpacked, " bytes."), "more");
    unpack(codec_, stored.subspan(8), static_cast<std::uint64_t>(whole), file_, body_ + offset,
           out_.unpacked.emplace_back());
    return out_.unpacked.back();
  }

  std::uint64_t variadic_count() {
    if (variadic_.size() < 8) wrong("a batch must say how many buffers views have.", "nothing");
    const auto count = FlatTable::read<std::uint64_t>(variadic_.data());
    variadic_ = variadic_.subspan(8);
    if (count > buffers_.size() / 16) wrong("a batch must have every buffer of each column.", "too few");
    return count;
  }

  void check(const ArrowField& field, const ArrowArray& array, bool indices) const {
    const std::uint64_t n = array.length;
    std::uint64_t needed = 0, child = 0;
    if (indices) {
      needed = n * static_cast<std::uint64_t>(field.dictionary->index_width);
    } else {
      switch (field.kind) {
        case ArrowKind::Bool:
          needed = (n + 7) / 8;
          break;
        case ArrowKind::Int:
        case ArrowKind::Float:
        case ArrowKind::View:
          needed = n * static_cast<std::uint64_t>(field.width);
          break;
        case ArrowKind::String:
        case ArrowKind::Bytes:
        case ArrowKind::List:
        case ArrowKind::Map:
          needed = n == 0 ? 0 : (n + 1) * static_cast<std::uint64_t>(field.width);
          break;
        case ArrowKind::FixedList:
          child = n * static_cast<std::uint64_t>(field.list_size);  // 2^48 x 2^31: see below
          if (n != 0 && child / n != static_cast<std::uint64_t>(field.list_size)) child = ~std::uint64_t{0};
          break;
        default:
          child = n;
      }
    }
    if (array.first.size() < needed || (!array.validity.empty() && array.validity.size() < (n + 7) / 8))
      wrong(concat("the buffers of \"", field.name, "\" must hold its ", n, " values."), "shorter ones");
    for (std::size_t i = 0; i < array.children.size(); ++i)
      if (field.children[i].is_shown() && array.children[i].length < child)
        wrong(concat("what \"", field.name, "\" is made of must be as long as itself."), "a shorter column");
  }

  const ColumnFile& file_;
  std::uint64_t body_;
  Bytes bytes_, nodes_, buffers_, variadic_;
  Codec codec_ = Codec::None;
  std::uint64_t unpacked_bytes_ = 0;
  ArrowBatch& out_;
};

}  // namespace

ArrowBatch read_arrow_batch(const FlatTable& batch, const std::vector<ArrowField>& fields, bool values,
                            std::uint64_t body, std::span<const std::byte> bytes, const ColumnFile& file) {
  ArrowBatch result;
  result.rows = batch.number<std::uint64_t>(0, 0);
  BatchReader reader(batch, body, bytes, file, result);
  for (const ArrowField& field : fields) {
    result.columns.push_back(reader.read(field, values));
    if (field.is_shown() && result.columns.back().length < result.rows)
      file.damaged(body, concat("a column of the batch must have its ", result.rows, " rows."),
                   concat("\"", field.name, "\" with ", result.columns.back().length));
  }
  return result;
}

void ArrowJson::write(const ArrowField& field, const ArrowArray& array, std::uint64_t index, std::uint64_t at,
                      std::string& out) const {
  if (out.size() - row_begin_ > kMaxRowBytes)
    file_.damaged(at, concat("a row may have at most ", kMaxRowBytes, " bytes."), "more");
  if (!array.validity.empty() && !bit(array.validity, index)) {
    out += "null";
    return;
  }
  if (!field.dictionary) return write_value(field, array, index, at, out);
  const int width = field.dictionary->index_width;
  std::uint64_t chosen = whole_number(array.first.data() + index * static_cast<std::uint64_t>(width), width, false);
  const auto found = dictionaries.find(field.dictionary->id);
  if (found == dictionaries.end()) file_.damaged(at, "a dictionary must come before what refers to it.", "none");
  for (const ArrowBatch& part : found->second) {
    const ArrowArray& values = part.columns.at(0);
    if (chosen < values.length) {
      if (!values.validity.empty() && !bit(values.validity, chosen))
        out += "null";
      else
        write_value(field, values, chosen, at, out);
      return;
    }
    chosen -= values.length;
  }
  file_.damaged(at, "an index must lie in its dictionary.", "a larger one");
}

void ArrowJson::write_value(const ArrowField& field, const ArrowArray& array, std::uint64_t index, std::uint64_t at,
                            std::string& out) const {
  const auto width = static_cast<std::uint64_t>(field.width);
  const std::byte* const place = array.first.data() + index * width;
  const auto offsets = [&](std::uint64_t limit) {
    const std::uint64_t begin = whole_number(place, field.width, true);
    const std::uint64_t end = whole_number(place + width, field.width, true);
    if (begin > end || end > limit)
      file_.damaged(at, concat("offsets of \"", field.name, "\" must ascend and stay within ", limit, "."),
                    concat(begin, " to ", end));
    return std::pair(begin, end);
  };
  switch (field.kind) {
    case ArrowKind::Left:
      out += "null";
      return;
    case ArrowKind::Bool:
      out += bit(array.first, index) ? "true" : "false";
      return;
    case ArrowKind::Int: {
      const std::uint64_t value = whole_number(place, field.width, field.is_signed);
      return field.is_signed ? append_json_number(static_cast<std::int64_t>(value), out)
                             : append_json_number(value, out);
    }
    case ArrowKind::Float:
      return field.width == 4 ? append_json_number(FlatTable::read<float>(place), out)
                              : append_json_number(FlatTable::read<double>(place), out);
    case ArrowKind::String:
    case ArrowKind::Bytes: {
      const auto [begin, end] = offsets(array.second.size());
      return write_text(array.second.subspan(begin, end - begin), field.kind == ArrowKind::String, at, out);
    }
    case ArrowKind::View:
      return write_text(view(array, index, at), !field.is_bytes, at, out);
    case ArrowKind::List:
    case ArrowKind::Map: {
      const auto [begin, end] = offsets(array.children[0].length);
      return write_list(field, array, begin, end, at, out);
    }
    case ArrowKind::FixedList: {
      const auto size = static_cast<std::uint64_t>(field.list_size);
      return write_list(field, array, index * size, (index + 1) * size, at, out);
    }
    case ArrowKind::Struct: {
      const char* before = "{";
      for (std::size_t i = 0; i < field.children.size(); ++i) {
        if (!field.children[i].is_shown()) continue;
        out += before;
        append_json_string(field.children[i].name, out);
        out += ':';
        write(field.children[i], array.children[i], index, at, out);
        before = ",";
      }
      out += '}';
      return;
    }
  }
}

void ArrowJson::write_list(const ArrowField& field, const ArrowArray& array, std::uint64_t begin, std::uint64_t end,
                           std::uint64_t at, std::string& out) const {
  out += '[';
  for (std::uint64_t i = begin; i < end; ++i) {
    if (i > begin) out += ',';
    write(field.children[0], array.children[0], i, at, out);
  }
  out += ']';
}

void ArrowJson::write_text(std::span<const std::byte> bytes, bool is_text, std::uint64_t at, std::string& out) const {
  if (out.size() - row_begin_ + bytes.size() > kMaxRowBytes)
    file_.damaged(at, concat("a row may have at most ", kMaxRowBytes, " bytes."), "more");
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  is_text ? append_json_string(text, out) : append_json_bytes(text, out);
}

/// A view is 16 bytes: the length, then the text itself where it has at most 12 bytes; else its beginning, and which
/// buffer has it where.
std::span<const std::byte> ArrowJson::view(const ArrowArray& array, std::uint64_t index, std::uint64_t at) const {
  const Bytes stored = array.first.subspan(static_cast<std::size_t>(index * 16), 16);
  const auto length = FlatTable::read<std::uint32_t>(stored.data());
  if (length <= 12) return stored.subspan(4, length);
  const auto which = FlatTable::read<std::uint32_t>(stored.data() + 8);
  const auto offset = FlatTable::read<std::uint32_t>(stored.data() + 12);
  if (which >= array.more.size() || offset > array.more[which].size() || length > array.more[which].size() - offset)
    file_.damaged(at, "a view must lie in its buffer.", concat(length, " bytes at ", offset));
  return array.more[which].subspan(offset, length);
}

}  // namespace megatron::data
