#include "megatron/data/files/npy.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <string_view>

#include "megatron/base/files/mapped_faults.h"
#include "megatron/base/files/write_error.h"

namespace megatron::data {
namespace {

constexpr std::string_view kMagic("\x93NUMPY", 6);
constexpr std::size_t kPrefixBytes = 10;  // magic, two bytes of version, u16 header length

const char* description(NpyType type) {
  switch (type) {
    case NpyType::I16:
      return "<i2";
    case NpyType::I32:
      return "<i4";
    case NpyType::I64:
      return "<i8";
    case NpyType::U32:
      return "<u4";
  }
  throw std::logic_error("unknown NpyType");
}

/// As numpy.save: padded with room for the first dimension to grow, to a multiple of 64 with prefix and end of line.
std::string header_of(NpyType type, const std::vector<std::int64_t>& shape) {
  std::string dims;
  for (const std::int64_t n : shape) dims += (dims.empty() ? "" : ", ") + std::to_string(n);
  if (shape.size() == 1) dims += ',';
  std::string header = concat("{'descr': '", description(type), "', 'fortran_order': False, 'shape': (", dims, "), }");
  constexpr std::size_t kGrowth = 21;
  header += std::string(kGrowth - std::to_string(shape.at(0)).size(), ' ');
  header += std::string(64 - (kPrefixBytes + header.size() + 1) % 64, ' ');
  return header + "\n";
}

template <class T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

/// Takes `text` off the front of `rest`.
bool eat(std::string_view& rest, std::string_view text) {
  if (!rest.starts_with(text)) return false;
  rest.remove_prefix(text.size());
  return true;
}

/// "3,", "3, 2": at most two dimensions.
std::optional<std::vector<std::int64_t>> parse_shape(std::string_view text) {
  std::vector<std::int64_t> shape;
  while (!text.empty() && shape.size() < 2) {
    std::int64_t n = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
    if (error != std::errc() || n < 0) return std::nullopt;
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    shape.push_back(n);
    if (!eat(text, ", ") && !eat(text, ",")) break;
  }
  if (!text.empty() || shape.empty()) return std::nullopt;
  return shape;
}

}  // namespace

std::size_t npy_item_size(NpyType type) { return type == NpyType::I16 ? 2 : type == NpyType::I64 ? 8 : 4; }

NpyArray::NpyArray(const std::string& path) : name_(path), file_(path), bytes_(file_->bytes()) { parse(); }

NpyArray::NpyArray(std::span<const std::byte> bytes, const std::string& name) : name_(name), bytes_(bytes) { parse(); }

void NpyArray::parse() {
  const auto damaged = [this](std::size_t at, const char* rule, const std::string& got) {
    throw ConfigError(
        rule_got_fix(concat(name_, ", byte ", at, ": ", rule), got, "remove the file; it is built again"));
  };
  const std::string_view text(reinterpret_cast<const char*>(bytes_.data()), bytes_.size());
  if (text.size() < kPrefixBytes || !text.starts_with(kMagic))
    damaged(0, "a .npy file begins with \"\\x93NUMPY\".", "other bytes");
  if (text[6] != 1) damaged(6, "the version must be 1.", concat(int{text[6]}));
  const std::size_t header_bytes = load<std::uint16_t>(bytes_.data() + 8);
  if (header_bytes > text.size() - kPrefixBytes)
    damaged(8, "the header must lie in the file.", concat(header_bytes, " bytes"));
  std::string_view header = text.substr(kPrefixBytes, header_bytes);
  bool known = eat(header, "{'descr': '");
  const std::string_view type = header.substr(0, 3);
  known = known && eat(header, type) && eat(header, "', 'fortran_order': False, 'shape': (");
  const std::size_t close = header.find(')');
  std::optional<std::vector<std::int64_t>> shape;
  if (known && close != std::string_view::npos && header.substr(close).starts_with("), }"))
    shape = parse_shape(header.substr(0, close));
  if (!shape)
    damaged(kPrefixBytes, "the header must describe an array of one or two dimensions in C order.", "another header");
  shape_ = *shape;
  known = false;
  for (const NpyType candidate : {NpyType::I16, NpyType::I32, NpyType::I64, NpyType::U32}) {
    if (type != description(candidate)) continue;
    type_ = candidate;
    known = true;
  }
  if (!known) damaged(kPrefixBytes, "the elements must be integers of a known type.", "another type");
  data_ = bytes_.subspan(kPrefixBytes + header_bytes);
  std::uint64_t bytes = npy_item_size(type_);
  for (const std::int64_t n : shape_)
    if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(n), &bytes)) bytes = ~std::uint64_t{0};
  if (bytes != data_.size())
    damaged(kPrefixBytes, "the shape must account for the whole file.", concat(data_.size(), " bytes of elements"));
  size_ = static_cast<std::int64_t>(data_.size() / npy_item_size(type_));
}

std::int64_t NpyArray::operator[](std::int64_t i) const {
  if (i < 0 || i >= size_) throw std::logic_error(concat(name_, ": element ", i, " of ", size_));
  const std::byte* from = data_.data() + static_cast<std::size_t>(i) * npy_item_size(type_);
  switch (type_) {
    case NpyType::I16:
      return load<std::int16_t>(from);
    case NpyType::I32:
      return load<std::int32_t>(from);
    case NpyType::I64:
      return load<std::int64_t>(from);
    case NpyType::U32:
      return load<std::uint32_t>(from);
  }
  throw std::logic_error("unknown NpyType");
}

std::string NpyArray::place_of(std::int64_t i) const {
  return concat(name_, ", byte ", bytes_.size() - data_.size() + static_cast<std::size_t>(i) * npy_item_size(type_));
}

NpyWriter::NpyWriter(const std::string& path, NpyType type, const std::vector<std::int64_t>& shape)
    : file_(path), type_(type) {
  const std::string header = header_of(type, shape);
  header_bytes_ = kPrefixBytes + header.size();
  file_.write(kMagic);
  file_.write_value(std::uint8_t{1});
  file_.write_value(std::uint8_t{0});
  file_.write_value(static_cast<std::uint16_t>(header.size()));
  file_.write(header);
  file_.flush();
  for (const std::int64_t n : shape) size_ *= n;
  const std::size_t bytes = header_bytes_ + static_cast<std::size_t>(size_) * npy_item_size(type);
  const std::string temporary = file_.temporary_path().string();
  const int fd = ::open(temporary.c_str(), O_RDWR | O_CLOEXEC);
  int error = fd < 0 ? errno : ::posix_fallocate(fd, 0, static_cast<off_t>(bytes));
  void* address = MAP_FAILED;
  if (error == 0) {
    address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    error = errno;
  }
  if (fd >= 0) ::close(fd);
  if (address == MAP_FAILED)
    throw std::runtime_error(write_error(path, concat(bytes, " bytes cannot be written"), error));
  mapped_ = {static_cast<std::byte*>(address), bytes};
  note_mapping(address, bytes, path);
}

NpyWriter::~NpyWriter() {
  if (mapped_.empty()) return;
  forget_mapping(mapped_.data());
  ::munmap(mapped_.data(), mapped_.size());
}

void NpyWriter::publish() {
  if (::msync(mapped_.data(), mapped_.size(), MS_SYNC) != 0)
    throw std::runtime_error(write_error(file_.temporary_path(), "cannot be synced", errno));
  file_.commit();
}

}  // namespace megatron::data
