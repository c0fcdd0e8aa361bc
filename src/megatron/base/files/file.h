#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

namespace megatron {

/// A file mapped read-only. Its bytes are as hostile as whoever wrote it: take them through the checked accessors.
/// Another process that shortens the file while it is mapped ends this one: with a message (mapped_faults.h).
class MappedFile {
 public:
  MappedFile() = default;
  /// Throws ConfigError where the file does not exist, is no regular file or may not be read.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  const std::filesystem::path& path() const { return path_; }
  std::uint64_t size() const { return size_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }

  /// Throws ConfigError where the file has become shorter: what then lies in the last page reads as zeros.
  void check_whole() const;

  /// `count` items of `item_size` bytes from byte `offset`. Throws ConfigError naming the file, `what` and the offset
  /// where they do not all lie in the file (no sum or product overflows).
  std::span<const std::byte> range(std::uint64_t offset, std::uint64_t count, std::uint64_t item_size,
                                   std::string_view what) const;

  /// The value at byte `offset`, which needs no alignment; checked as in range().
  template <class T>
  T read(std::uint64_t offset, std::string_view what) const {
    static_assert(std::is_trivially_copyable_v<T>);
    T value;
    std::memcpy(&value, range(offset, 1, sizeof(T), what).data(), sizeof(T));
    return value;
  }

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  std::uint64_t size_ = 0;
};

/// A file that appears under its name complete or not at all. Until commit() it has no name, so that nothing is left of
/// it however the program ends; where the file system has no such files it has a temporary one in the same folder,
/// which only a killed program leaves behind.
class AtomicFile {
 public:
  enum class Until : std::uint8_t { Unnamed, Named };  ///< what it is before commit(); Unnamed: where that can be

  /// A link's target is written, and what is replaced keeps its mode where that can be. Throws ConfigError where the
  /// folder does not exist or may not be written, or `path` is a device, a pipe, a socket or a link to a file that is
  /// open (/dev/stdout).
  explicit AtomicFile(std::filesystem::path path, Until until = Until::Unnamed);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// Appends; gathered in a buffer of 1 MiB. Throws std::runtime_error where the file cannot take it (disk full).
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  /// The object representation of `value` (this project's machines are little-endian, as its formats are).
  template <class T>
  requires(std::is_arithmetic_v<T>) void write_value(T value) { write(std::as_bytes(std::span(&value, 1))); }

  std::uint64_t size() const { return size_; }
  /// Hands the buffer to the system, so that what was written can be read at temporary_path().
  void flush();
  /// Where this process can open the file before commit(), to read it or to write it by other means.
  const std::filesystem::path& temporary_path() const { return temporary_path_; }

  /// The file and its name are on the disk when this returns.
  void commit();

 private:
  bool open_unnamed();
  void open_named();
  void keep_mode() const;
  std::filesystem::path other_name(int attempt) const;
  void give_name();

  std::filesystem::path path_, temporary_path_;
  std::string buffer_;
  std::uint64_t size_ = 0;
  int descriptor_ = -1;
  bool is_named_ = false;  // temporary_path_ is a name in the folder
};

/// The whole file. Throws ConfigError where it cannot be opened or is larger than `limit` bytes.
std::string read_file(const std::filesystem::path& path, std::uint64_t limit = std::uint64_t{1} << 32);

/// Throws ConfigError where an AtomicFile would replace what is no regular file at `path` (a folder, a device, a pipe
/// or a socket), or where `path` is a link to a file that is open (/dev/stdout).
void check_replaceable(const std::filesystem::path& path);

/// Writes a whole file through an AtomicFile.
void write_file(const std::filesystem::path& path, std::string_view text);

/// Makes a folder and those above it unless they are there; empty means the current one. Called before long work whose
/// result goes there: throws ConfigError, with `fix`, where the folder cannot be made or written.
void make_folder(const std::filesystem::path& folder, const std::string& fix = "name a folder in which you may write");

/// Makes renames and new names in a folder durable.
void fsync_folder(const std::filesystem::path& folder);

}  // namespace megatron
