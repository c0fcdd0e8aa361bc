#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>

#include "megatron/base/files/write_error.h"
#include "megatron/base/machine/out_of_memory.h"
#include "megatron/checkpoint/files/files.h"

namespace megatron::checkpoint {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{4} << 20;
constexpr std::size_t kSector = 4096;  // what O_DIRECT wants addresses, offsets and sizes to be multiples of
static_assert(kBufferBytes % kBlockBytes == 0 && kBlockBytes % kSector == 0);

[[noreturn]] void fail(const std::filesystem::path& path, const char* action) {
  throw std::runtime_error(write_error(path, action, errno));
}

struct FreeMemory {
  void operator()(void* memory) const { std::free(memory); }
};
using AlignedMemory = std::unique_ptr<std::byte, FreeMemory>;

AlignedMemory aligned_memory(std::size_t size) {
  auto* const memory = static_cast<std::byte*>(std::aligned_alloc(kSector, size));
  if (memory == nullptr) throw AllocationFailed(size);
  return AlignedMemory(memory);
}

}  // namespace

// The caller fills one buffer while threads write others: disks want several requests at a time, and none of them waits
// where a busy machine keeps one thread from running.
struct HashedWriter::Impl {
  struct Buffer {
    AlignedMemory memory = aligned_memory(kBufferBytes);
    // Under the mutex.
    enum class State : std::uint8_t { Free, Full, Writing } state = State::Free;
    std::size_t size = 0;
    std::uint64_t offset = 0;
  };

  std::filesystem::path path;
  FileRecord record;
  int descriptor = -1;
  std::array<Buffer, 4> buffers;
  Buffer* filling = buffers.data();
  std::size_t filled = 0;

  std::mutex mutex;
  std::condition_variable changed;
  bool ends = false;         // under the mutex
  std::exception_ptr error;  // under the mutex
  std::array<std::thread, 2> threads;

  ~Impl() {
    {
      const std::lock_guard lock(mutex);
      ends = true;
      changed.notify_all();
    }
    for (std::thread& thread : threads)
      if (thread.joinable()) thread.join();
    if (descriptor >= 0) ::close(descriptor);
  }

  /// Under the mutex.
  Buffer* find(Buffer::State state) {
    const auto found = std::find_if(buffers.begin(), buffers.end(), [&](const Buffer& b) { return b.state == state; });
    return found == buffers.end() ? nullptr : &*found;
  }

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
      Buffer* buffer = nullptr;
      changed.wait(lock, [&] { return ends || (buffer = find(Buffer::State::Full)) != nullptr; });
      if (ends) return;
      buffer->state = Buffer::State::Writing;
      lock.unlock();
      std::exception_ptr thrown;
      try {
        write_all(buffer->memory.get(), buffer->size, buffer->offset);
      } catch (...) {
        thrown = std::current_exception();
      }
      lock.lock();
      if (thrown) error = thrown;
      buffer->state = Buffer::State::Free;
      changed.notify_all();
    }
  }

  void hand_over() {
    // A file's end need not lie on a sector's: what is written past it is cut off at the end.
    const std::size_t size = (filled + kSector - 1) / kSector * kSector;
    std::memset(filling->memory.get() + filled, 0, size - filled);
    std::unique_lock lock(mutex);
    filling->size = size;
    filling->offset = record.size - filled;
    filling->state = Buffer::State::Full;
    changed.notify_all();
    changed.wait(lock, [&] { return error || find(Buffer::State::Free) != nullptr; });
    if (error) std::rethrow_exception(error);
    filling = find(Buffer::State::Free);
    filled = 0;
  }

  void wait_until_written() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return !find(Buffer::State::Full) && !find(Buffer::State::Writing); });
    if (error) std::rethrow_exception(error);
  }
};

HashedWriter::HashedWriter(const std::filesystem::path& path, std::uint64_t size) : impl_(std::make_unique<Impl>()) {
  impl_->path = path;
  impl_->record.name = path.filename();
  impl_->open_file(size);
  for (std::thread& thread : impl_->threads) thread = std::thread([impl = impl_.get()] { impl->run(); });
}

HashedWriter::~HashedWriter() = default;

std::span<std::byte> HashedWriter::space() {
  if (impl_->filled == kBufferBytes) impl_->hand_over();
  const std::size_t in_block = impl_->filled % kBlockBytes;
  return {impl_->filling->memory.get() + impl_->filled, kBlockBytes - in_block};
}

void HashedWriter::wrote(std::size_t count) {
  impl_->filled += count;
  impl_->record.size += count;
  if (count == 0 || impl_->filled % kBlockBytes != 0) return;
  const std::byte* const end = impl_->filling->memory.get() + impl_->filled;
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
    record.block_hashes.push_back(XXH3_64bits(impl_->filling->memory.get() + impl_->filled - rest, rest));
  if (impl_->filled > 0) impl_->hand_over();
  impl_->wait_until_written();
  if (::ftruncate(impl_->descriptor, static_cast<off_t>(record.size)) != 0) fail(impl_->path, "cannot be written");
  if (::fsync(impl_->descriptor) != 0) fail(impl_->path, "cannot be synced");
  return record;
}

}  // namespace megatron::checkpoint
