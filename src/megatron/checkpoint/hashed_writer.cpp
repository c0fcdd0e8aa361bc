#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>

#include "megatron/checkpoint/files.h"

namespace megatron::checkpoint {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{4} << 20;
constexpr std::size_t kSector = 4096;  // what O_DIRECT wants addresses, offsets and sizes to be multiples of
static_assert(kBufferBytes % kBlockBytes == 0 && kBlockBytes % kSector == 0);

[[noreturn]] void fail(const std::filesystem::path& path, const char* action) {
  throw std::runtime_error(concat(path.string(), ": ", action, ": ", std::strerror(errno)));
}

struct FreeMemory {
  void operator()(void* memory) const { std::free(memory); }
};
using AlignedMemory = std::unique_ptr<std::byte, FreeMemory>;

AlignedMemory aligned_memory(std::size_t size) {
  auto* const memory = static_cast<std::byte*>(std::aligned_alloc(kSector, size));
  if (memory == nullptr) throw std::bad_alloc();
  return AlignedMemory(memory);
}

}  // namespace

// The caller fills buffer `filling`; the thread writes the other one when it is handed over.
struct HashedWriter::Impl {
  std::filesystem::path path;
  FileRecord record;
  int descriptor = -1;
  AlignedMemory buffers[2] = {aligned_memory(kBufferBytes), aligned_memory(kBufferBytes)};
  int filling = 0;
  std::size_t filled = 0;

  std::mutex mutex;
  std::condition_variable changed;
  // Under the mutex: the buffer on its way, and the thread's orders.
  int writing = -1;
  std::size_t writing_size = 0;
  std::uint64_t writing_offset = 0;
  bool ends = false;
  std::exception_ptr error;
  std::thread thread;

  void open_file(std::uint64_t size) {
    constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;
    descriptor = ::open(path.c_str(), kFlags | O_DIRECT, 0666);
    if (descriptor < 0 && errno == EINVAL) descriptor = ::open(path.c_str(), kFlags, 0666);  // e.g. tmpfs
    if (descriptor < 0) fail(path, "cannot be written");
    const bool reserved = size == 0 || ::fallocate(descriptor, 0, 0, static_cast<off_t>(size)) == 0;
    if (!reserved && (errno == ENOSPC || errno == EDQUOT || errno == EFBIG)) fail(path, "cannot be written");
  }

  /// The cache takes any alignment. False where it is in use already.
  bool leave_direct() const {
    const int flags = ::fcntl(descriptor, F_GETFL);
    return (flags & O_DIRECT) != 0 && ::fcntl(descriptor, F_SETFL, flags & ~O_DIRECT) == 0;
  }

  void write_all(const std::byte* bytes, std::size_t size, std::uint64_t offset) const {
    while (size > 0) {
      const ssize_t written = ::pwrite(descriptor, bytes, size, static_cast<off_t>(offset));
      if (written < 0 && (errno == EINTR || (errno == EINVAL && leave_direct()))) continue;
      if (written <= 0) fail(path, "cannot be written");
      if (static_cast<std::size_t>(written) % kSector != 0) leave_direct();
      bytes += written;
      size -= static_cast<std::size_t>(written);
      offset += static_cast<std::uint64_t>(written);
    }
  }

  void run() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return writing >= 0 || ends; });
      if (writing < 0) return;
      const std::byte* const bytes = buffers[writing].get();
      const std::size_t size = writing_size;
      const std::uint64_t offset = writing_offset;
      lock.unlock();
      std::exception_ptr thrown;
      try {
        write_all(bytes, size, offset);
      } catch (...) {
        thrown = std::current_exception();
      }
      lock.lock();
      if (thrown) error = thrown;
      writing = -1;
      changed.notify_all();
    }
  }

  void hand_over() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return writing < 0; });
    if (error) std::rethrow_exception(error);
    writing = filling;
    // A file's end need not lie on a sector's: what is written past it is cut off at the end.
    writing_size = (filled + kSector - 1) / kSector * kSector;
    std::memset(buffers[filling].get() + filled, 0, writing_size - filled);
    writing_offset = record.size - filled;
    changed.notify_all();
    filling = 1 - filling;
    filled = 0;
  }

  void wait_until_written() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return writing < 0; });
    if (error) std::rethrow_exception(error);
  }
};

HashedWriter::HashedWriter(const std::filesystem::path& path, std::uint64_t size) : impl_(std::make_unique<Impl>()) {
  impl_->path = path;
  impl_->record.name = path.filename();
  impl_->open_file(size);
  impl_->thread = std::thread([impl = impl_.get()] { impl->run(); });
}

HashedWriter::~HashedWriter() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->ends = true;
    impl_->changed.notify_all();
  }
  if (impl_->thread.joinable()) impl_->thread.join();
  if (impl_->descriptor >= 0) ::close(impl_->descriptor);
}

std::span<std::byte> HashedWriter::space() {
  if (impl_->filled == kBufferBytes) impl_->hand_over();
  const std::size_t in_block = impl_->filled % kBlockBytes;
  return {impl_->buffers[impl_->filling].get() + impl_->filled, kBlockBytes - in_block};
}

void HashedWriter::wrote(std::size_t count) {
  impl_->filled += count;
  impl_->record.size += count;
  if (count == 0 || impl_->filled % kBlockBytes != 0) return;
  const std::byte* const end = impl_->buffers[impl_->filling].get() + impl_->filled;
  impl_->record.block_hashes.push_back(XXH3_64bits(end - kBlockBytes, kBlockBytes));  // while it is in the caches
}

void HashedWriter::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::span<std::byte> into = space();
    const std::size_t part = std::min(bytes.size(), into.size());
    std::memcpy(into.data(), bytes.data(), part);
    wrote(part);
    bytes = bytes.subspan(part);
  }
}

FileRecord HashedWriter::finish() {
  FileRecord& record = impl_->record;
  if (const std::size_t rest = impl_->filled % kBlockBytes; rest > 0)
    record.block_hashes.push_back(XXH3_64bits(impl_->buffers[impl_->filling].get() + impl_->filled - rest, rest));
  if (impl_->filled > 0) impl_->hand_over();
  impl_->wait_until_written();
  if (::ftruncate(impl_->descriptor, static_cast<off_t>(record.size)) != 0) fail(impl_->path, "cannot be written");
  if (::fsync(impl_->descriptor) != 0) fail(impl_->path, "cannot be synced");
  return record;
}

}  // namespace megatron::checkpoint
