#include "megatron/base/files/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <tuple>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/files/mapped_faults.h"
#include "megatron/base/files/regular_file.h"
#include "megatron/base/files/write_error.h"
#include "megatron/base/text/printable.h"

namespace megatron {
namespace {

constexpr std::size_t kBufferSize = std::size_t{1} << 20;

std::string system_message() { return std::strerror(errno); }

[[noreturn]] void fail(const std::filesystem::path& path, const char* action) {
  throw std::runtime_error(write_error(path, action, errno));
}

/// A descriptor that closes itself.
class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  ~Descriptor() {
    if (value_ >= 0) close(value_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return value_; }

 private:
  int value_;
};

/// As open_regular(), with a ConfigError for what is not open then.
std::pair<int, std::uint64_t> open_input(const std::filesystem::path& path) {
  const OpenedFile file = open_regular(path);
  if (file.is_other)
    throw ConfigError(
        rule_got_fix("an input must be a regular file.", path.string(),
                     std::filesystem::is_directory(path) ? "name a file in it" : "copy what it gives to a file"));
  if (file.descriptor < 0)
    throw ConfigError(rule_got_fix("an input file must exist and be readable.",
                                   path.string() + ": " + std::strerror(file.error),
                                   "name a file that is there and may be read"));
  return {file.descriptor, file.size};
}

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : ".";
}

/// Throws ConfigError for a link of /proc/…/fd, as /dev/stdout is one: what is open there may be a regular file, which
/// others write too.
void check_no_descriptor(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::canonical(folder_of(path), error);
  if (!error && folder.filename() == "fd" && folder.string().starts_with("/proc/"))
    throw ConfigError(rule_got_fix("an output must be a file of its own, which is there whole or not at all.",
                                   path.string() + ", a file that is open", "name a file"));
}

/// What `path` leads to where it is a link, be it there or not.
std::filesystem::path end_of_links(std::filesystem::path path) {
  constexpr int kMost = 40;  // as the system follows
  std::error_code error;
  for (int i = 0; i < kMost && std::filesystem::is_symlink(path, error); ++i) {
    check_no_descriptor(path);
    const std::filesystem::path target = std::filesystem::read_symlink(path, error);
    if (error) break;
    path = folder_of(path) / target;  // the target alone where it is absolute
  }
  return path;
}

void write_all(int descriptor, std::span<const std::byte> bytes, std::uint64_t offset,
               const std::filesystem::path& path) {
  while (!bytes.empty()) {
    const ssize_t written = pwrite(descriptor, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) fail(path, "cannot be written");
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    offset += static_cast<std::uint64_t>(written);
  }
}

/// Throws ConfigError for a device, a pipe or a socket.
void check_kind(const std::filesystem::path& path) {
  std::error_code none;
  const std::filesystem::file_status status = std::filesystem::status(path, none);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status) &&
      !std::filesystem::is_directory(status))
    throw ConfigError(rule_got_fix("an output must be a regular file, which is there whole or not at all.",
                                   path.string() + ", a device, a pipe or a socket", "name a file"));
}

}  // namespace

OpenedFile open_regular(const std::filesystem::path& path) {
  // Without O_NONBLOCK a named pipe would be waited for until somebody writes to it; regular files do not know the
  // flag.
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (descriptor < 0) return {.error = errno, .is_other = errno == ENXIO};  // a socket, or a device without a driver
  struct stat status {};
  if (fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) {
    close(descriptor);
    return {.is_other = true};
  }
  return {.descriptor = descriptor, .size = static_cast<std::uint64_t>(status.st_size)};
}

void check_regular(const std::filesystem::path& path) { close(open_input(path).first); }

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  const auto [opened, size] = open_input(path);
  const Descriptor descriptor(opened);
  if (size == 0) return;  // an empty mapping is an error to mmap
  void* const address = mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor.get(), 0);
  if (address == MAP_FAILED) fail(path, "cannot be mapped");
  data_ = static_cast<const std::byte*>(address);
  size_ = size;
  note_mapping(data_, size_, path_);
}

MappedFile::~MappedFile() {
  if (data_ == nullptr) return;
  forget_mapping(data_);
  munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void MappedFile::check_whole() const {
  std::error_code error;
  const std::uint64_t size = std::filesystem::file_size(path_, error);
  if (error || size >= size_) return;
  throw ConfigError(rule_got_fix(concat(printable(path_.string()), ": a file must stay as it is while it is read."),
                                 concat("cut off from ", size_, " to ", size, " bytes meanwhile"),
                                 "restore the file, then start again"));
}

std::span<const std::byte> MappedFile::range(std::uint64_t offset, std::uint64_t count, std::uint64_t item_size,
                                             std::string_view what) const {
  const bool fits = offset <= size_ && (item_size == 0 || count <= (size_ - offset) / item_size);
  if (!fits)
    throw ConfigError(
        rule_got_fix(concat(path_.string(), ": ", what, " must lie within the file."),
                     concat(count, " x ", item_size, " bytes at byte ", offset, " of a file of ", size_, " bytes"),
                     "copy or make the file again: it is cut off or damaged"));
  return {data_ + offset, count * item_size};
}

AtomicFile::AtomicFile(std::filesystem::path path, Until until) : path_(end_of_links(std::move(path))) {
  check_kind(path_);
  if (until == Until::Named || !open_unnamed()) open_named();
  keep_mode();
  buffer_.reserve(kBufferSize);
}

AtomicFile::~AtomicFile() {
  if (descriptor_ < 0) return;
  close(descriptor_);
  if (is_named_) unlink(temporary_path_.c_str());
}

/// Gives it the mode of the one that it replaces, where the file system has modes to give.
void AtomicFile::keep_mode() const {
  constexpr mode_t kModes = 0777;
  struct stat replaced = {}, own = {};
  if (stat(path_.c_str(), &replaced) == 0 && fstat(descriptor_, &own) == 0 &&
      ((replaced.st_mode ^ own.st_mode) & kModes) != 0)
    std::ignore = fchmod(descriptor_, replaced.st_mode & kModes);
}

/// False where the file system has no unnamed files, or nothing by which one could be named later.
bool AtomicFile::open_unnamed() {
  descriptor_ = open(folder_of(path_).c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0666);
  if (descriptor_ < 0) return false;
  temporary_path_ = concat("/proc/self/fd/", descriptor_);
  if (access(temporary_path_.c_str(), F_OK) == 0) return true;
  close(std::exchange(descriptor_, -1));
  return false;
}

void AtomicFile::open_named() {
  for (int attempt = 0; descriptor_ < 0; ++attempt) {
    temporary_path_ = other_name(attempt);
    descriptor_ = open(temporary_path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor_ < 0 && errno != EEXIST)
      throw ConfigError(rule_got_fix("an output's folder must exist and be writable.",
                                     path_.string() + ": " + system_message(),
                                     "name a folder that is there and in which you may write"));
  }
  is_named_ = true;
}

std::filesystem::path AtomicFile::other_name(int attempt) const {
  std::filesystem::path name = path_;
  return name += concat(".", getpid(), ".", attempt, ".tmp");
}

/// Gives the unnamed file its final name, or a temporary one where another file has that: a link replaces nothing.
void AtomicFile::give_name() {
  std::filesystem::path name = path_;
  for (int attempt = 0; linkat(AT_FDCWD, temporary_path_.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) != 0;
       ++attempt) {
    if (errno != EEXIST) fail(path_, "cannot be named");
    name = other_name(attempt);
  }
  temporary_path_ = std::move(name);
  is_named_ = true;
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  if (buffer_.size() + bytes.size() > kBufferSize) flush();
  if (bytes.size() >= kBufferSize)
    write_all(descriptor_, bytes, size_, path_);
  else
    buffer_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  size_ += bytes.size();
}

void AtomicFile::flush() {
  write_all(descriptor_, std::as_bytes(std::span(buffer_)), size_ - buffer_.size(), path_);
  buffer_.clear();
}

void AtomicFile::commit() {
  flush();
  if (fsync(descriptor_) != 0) fail(path_, "cannot be synced");
  if (!is_named_) give_name();
  if (temporary_path_ != path_ && rename(temporary_path_.c_str(), path_.c_str()) != 0)
    fail(path_, "cannot be renamed to");
  close(std::exchange(descriptor_, -1));
  fsync_folder(folder_of(path_));
}

std::string read_file(const std::filesystem::path& path, std::uint64_t limit) {
  const auto [opened, size] = open_input(path);
  const Descriptor descriptor(opened);
  if (size > limit)
    throw ConfigError(rule_got_fix(concat(path.string(), ": the file may have at most ", limit, " bytes."),
                                   concat(size, " bytes"), "name the file that was meant"));
  std::string text(size, '\0');
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t got = ::read(descriptor.get(), text.data() + done, text.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(path, "cannot be read");
    if (got == 0) break;  // shortened meanwhile
    done += static_cast<std::size_t>(got);
  }
  text.resize(done);
  return text;
}

void check_replaceable(const std::filesystem::path& path) {
  if (std::error_code none; std::filesystem::is_directory(path, none))
    throw ConfigError(rule_got_fix("an output must be a file.", path.string() + ", a folder", "name a file in it"));
  check_kind(end_of_links(path));
}

void write_file(const std::filesystem::path& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

void make_folder(const std::filesystem::path& folder, const std::string& fix) {
  const std::filesystem::path path = folder.empty() ? "." : folder;
  constexpr int kAttempts = 16;  // another process may remove it as soon as it is there
  std::error_code error;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    std::filesystem::create_directories(path, error);
    if (!error && access(path.c_str(), W_OK | X_OK) != 0) error = std::error_code(errno, std::generic_category());
    if (error != std::errc::no_such_file_or_directory) break;
  }
  if (error)
    throw ConfigError(
        rule_got_fix("an output's folder must be writable.", concat(path.string(), ": ", error.message()), fix));
}

void fsync_folder(const std::filesystem::path& folder) {
  const Descriptor descriptor(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (descriptor.get() < 0 || fsync(descriptor.get()) != 0) fail(folder, "folder cannot be synced");
}

}  // namespace megatron
