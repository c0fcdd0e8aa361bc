#include "megatron/interchange/megatron_lm/pickle_writer.h"

#include <array>
#include <bit>
#include <utility>

namespace megatron::interchange {
namespace {

constexpr std::uint64_t kDataAlignment = 64;

constexpr std::array<std::uint32_t, 256> kCrcTable = [] {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    std::uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value & 1) != 0 ? 0xEDB88320u ^ (value >> 1) : value >> 1;
    table[i] = value;
  }
  return table;
}();

std::uint32_t crc32(std::string_view data) {
  std::uint32_t crc = ~std::uint32_t{0};
  for (const char byte : data) crc = kCrcTable[(crc ^ static_cast<std::uint8_t>(byte)) & 0xFF] ^ (crc >> 8);
  return ~crc;
}

class ArchiveBytes {
 public:
  template <class T>
  void put(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void put_text(std::string_view text) { bytes_ += text; }
  void reserve(std::uint64_t size) { bytes_.reserve(size); }
  std::uint64_t size() const { return bytes_.size(); }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

/// What the local header and the directory's record of a file have in common, from the version on.
void put_description(ArchiveBytes& bytes, const ArchiveFile& file, std::uint32_t crc, std::uint16_t extra) {
  bytes.put(std::uint16_t{10});  // needs version 1.0
  bytes.put(std::uint16_t{0});   // no flags
  bytes.put(std::uint16_t{0});   // stored
  bytes.put(std::uint32_t{0});   // no time
  bytes.put(crc);
  bytes.put(static_cast<std::uint32_t>(file.data.size()));
  bytes.put(static_cast<std::uint32_t>(file.data.size()));
  bytes.put(static_cast<std::uint16_t>(file.name.size()));
  bytes.put(extra);
}

}  // namespace

PickleWriter::PickleWriter() { codes("\x80\x02"); }

void PickleWriter::integer(std::int64_t value) {
  if (value == static_cast<std::int32_t>(value)) {
    code('J');
    raw(static_cast<std::int32_t>(value));
  } else {
    codes("\x8a\x08");
    raw(value);
  }
}

void PickleWriter::number(double value) {
  code('G');
  raw(__builtin_bswap64(std::bit_cast<std::uint64_t>(value)));
}

void PickleWriter::text(std::string_view value) {
  code('X');
  raw(static_cast<std::uint32_t>(value.size()));
  codes(value);
}

void PickleWriter::name(std::string_view module, std::string_view name) {
  code('c');
  codes(module);
  code('\n');
  codes(name);
  code('\n');
}

void PickleWriter::size(const std::vector<std::int64_t>& shape) {
  name("torch", "Size");
  begin_tuple();
  begin_tuple();
  for (const std::int64_t length : shape) integer(length);
  end_tuple();
  end_tuple();
  call();
}

void PickleWriter::begin_object(std::string_view module, std::string_view class_name) {
  name(module, class_name);
  codes(")\x81");
}

void PickleWriter::tensor(std::string_view storage, std::size_t number, const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> strides(shape.size());
  std::int64_t elements = 1;
  for (std::size_t d = shape.size(); d-- > 0; elements *= shape[d]) strides[d] = elements;
  name("torch._utils", "_rebuild_tensor_v2");
  begin_tuple();
  begin_tuple();
  text("storage");
  name("torch", storage);
  text(std::to_string(number));
  text("cpu");
  integer(elements);
  end_tuple();
  persistent();
  integer(0);
  for (const std::vector<std::int64_t>& numbers : {shape, strides}) {
    begin_tuple();
    for (const std::int64_t each : numbers) integer(each);
    end_tuple();
  }
  boolean(false);
  name("collections", "OrderedDict");
  begin_tuple();
  end_tuple();
  call();
  end_tuple();
  call();
}

std::string PickleWriter::take() {
  code('.');
  return std::move(bytes_);
}

std::string make_archive(const std::vector<ArchiveFile>& files) {
  ArchiveBytes bytes, directory;
  std::uint64_t total = 1024;
  for (const ArchiveFile& file : files) total += file.data.size() + 256;
  bytes.reserve(total);
  for (const ArchiveFile& file : files) {
    const std::uint32_t crc = crc32(file.data);
    const auto begin = static_cast<std::uint32_t>(bytes.size());
    // An extra field, of 4 bytes and its content, moves the data to where it belongs.
    const std::uint64_t unpadded = bytes.size() + 30 + file.name.size() + 4;
    const auto padding = static_cast<std::uint16_t>((kDataAlignment - unpadded % kDataAlignment) % kDataAlignment);
    bytes.put(std::uint32_t{0x04034b50});
    put_description(bytes, file, crc, static_cast<std::uint16_t>(padding + 4));
    bytes.put_text(file.name);
    bytes.put(std::uint16_t{0x4246});  // as torch.save calls its padding
    bytes.put(padding);
    bytes.put_text(std::string(padding, 'Z'));
    bytes.put_text(file.data);
    directory.put(std::uint32_t{0x02014b50});
    directory.put(std::uint16_t{10});  // made by version 1.0
    put_description(directory, file, crc, 0);
    directory.put(std::uint16_t{0});  // no comment
    directory.put(std::uint16_t{0});  // first disk
    directory.put(std::uint16_t{0});  // internal attributes
    directory.put(std::uint32_t{0});  // external attributes
    directory.put(begin);
    directory.put_text(file.name);
  }
  const auto directory_begin = static_cast<std::uint32_t>(bytes.size());
  const auto directory_size = static_cast<std::uint32_t>(directory.size());
  bytes.put_text(directory.take());
  bytes.put(std::uint32_t{0x06054b50});
  bytes.put(std::uint32_t{0});  // one disk
  bytes.put(static_cast<std::uint16_t>(files.size()));
  bytes.put(static_cast<std::uint16_t>(files.size()));
  bytes.put(directory_size);
  bytes.put(directory_begin);
  bytes.put(std::uint16_t{0});  // no comment
  return bytes.take();
}

std::string saved_value(const std::string& pickle) {
  return make_archive({{"archive/data.pkl", pickle}, {"archive/byteorder", "little"}, {"archive/version", "3\n"}});
}

std::string saved_tensor(std::string_view storage, const std::vector<std::int64_t>& shape, std::string_view data) {
  PickleWriter pickle;
  pickle.tensor(storage, 0, shape);
  const std::string values = pickle.take();
  return make_archive({{"archive/data.pkl", values},
                       {"archive/byteorder", "little"},
                       {"archive/data/0", data},
                       {"archive/version", "3\n"}});
}

}  // namespace megatron::interchange
