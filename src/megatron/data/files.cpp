#include "megatron/data/files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "megatron/base/error.h"

namespace megatron::data {
namespace {

constexpr std::size_t kBufferBytes = 1 << 20;

[[noreturn]] void fail_system(const char* what, const std::string& path) {
  throw std::runtime_error(concat("cannot ", what, " ", path, ": ", std::strerror(errno)));
}

/// Makes a rename in `folder` survive a power cut. Some file systems cannot sync folders; the data is safe all the
/// same.
void sync_folder(const std::string& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  ::fsync(fd);
  ::close(fd);
}

std::string folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

}  // namespace

MappedFile::MappedFile(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0 && (errno == ENOENT || errno == ENOTDIR))
    throw ConfigError(rule_got_fix("a file that is to be read must exist.", path));
  if (fd < 0) fail_system("open", path);
  struct stat info {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd);
    throw ConfigError(rule_got_fix("a file that is to be mapped must be a regular file.", path));
  }
  const auto size = static_cast<std::size_t>(info.st_size);
  void* address = size == 0 ? nullptr : ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  const int error = errno;
  ::close(fd);
  errno = error;
  if (address == MAP_FAILED) fail_system("map", path);
  bytes_ = {static_cast<const std::byte*>(address), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

OutputFile::OutputFile(const std::string& path) : path_(path), temporary_(path + ".tmp-XXXXXX") {
  std::error_code error;
  std::filesystem::create_directories(folder_of(path), error);
  if (error) throw std::runtime_error(concat("cannot make folder ", folder_of(path), ": ", error.message()));
  fd_ = ::mkostemp(temporary_.data(), O_CLOEXEC);
  if (fd_ < 0) fail_system("create", temporary_);
  ::fchmod(fd_, 0644);
  buffer_.reserve(kBufferBytes);
}

OutputFile::~OutputFile() {
  if (!mapped_.empty()) ::munmap(mapped_.data(), mapped_.size());
  if (fd_ >= 0) ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void OutputFile::fail(const char* what) const { fail_system(what, temporary_); }

void OutputFile::write(const void* bytes, std::size_t size) {
  const auto* from = static_cast<const std::byte*>(bytes);
  if (buffer_.size() + size > kBufferBytes) flush();
  if (size > kBufferBytes) {
    overwrite(written_, bytes, size);
    written_ += static_cast<std::int64_t>(size);
  } else {
    buffer_.insert(buffer_.end(), from, from + size);
  }
}

void OutputFile::flush() {
  std::vector<std::byte> full;
  full.swap(buffer_);
  const auto size = full.size();
  overwrite(written_, full.data(), size);
  written_ += static_cast<std::int64_t>(size);
  full.clear();
  buffer_.swap(full);
}

void OutputFile::overwrite(std::int64_t offset, const void* bytes, std::size_t size) {
  if (!buffer_.empty()) flush();
  const auto* from = static_cast<const std::byte*>(bytes);
  while (size > 0) {
    const ssize_t n = ::pwrite(fd_, from, size, offset);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail("write");
    from += n;
    offset += n;
    size -= static_cast<std::size_t>(n);
  }
}

std::size_t OutputFile::read_back(std::int64_t offset, std::span<std::byte> out) {
  if (!buffer_.empty()) flush();
  std::size_t done = 0;
  while (done < out.size()) {
    const ssize_t n = ::pread(fd_, out.data() + done, out.size() - done, offset + static_cast<std::int64_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("read back");
    if (n == 0) break;
    done += static_cast<std::size_t>(n);
  }
  return done;
}

std::span<std::byte> OutputFile::map(std::int64_t size) {
  if (size == 0) return {};
  errno = ::posix_fallocate(fd_, 0, size);
  if (errno != 0) fail("allocate");
  void* address = ::mmap(nullptr, static_cast<std::size_t>(size), PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (address == MAP_FAILED) fail("map");
  mapped_ = {static_cast<std::byte*>(address), static_cast<std::size_t>(size)};
  return mapped_;
}

void OutputFile::finish() {
  if (fd_ < 0) return;
  if (!mapped_.empty()) {
    ::munmap(mapped_.data(), mapped_.size());
    mapped_ = {};
  }
  if (!buffer_.empty()) flush();
  if (::fsync(fd_) != 0) fail("sync");
  const int fd = std::exchange(fd_, -1);
  if (::close(fd) != 0) fail("close");
}

void OutputFile::publish() {
  finish();
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail_system("rename to", path_);
  temporary_.clear();
  sync_folder(folder_of(path_));
}

}  // namespace megatron::data
