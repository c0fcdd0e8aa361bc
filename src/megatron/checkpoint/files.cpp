#include "megatron/checkpoint/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace megatron::checkpoint {
namespace {

constexpr std::uint64_t kNoBlock = ~std::uint64_t{0};
constexpr std::uint64_t kAheadBytes = std::uint64_t{16} << 20;
constexpr const char* kFix = "load another checkpoint of the run";

/// Fewer than asked for where the file ends or the disk fails.
std::size_t read_some(int descriptor, std::uint64_t offset, std::span<std::byte> into) {
  std::size_t done = 0;
  while (done < into.size()) {
    const ssize_t got = ::pread(descriptor, into.data() + done, into.size() - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    done += static_cast<std::size_t>(got);
  }
  return done;
}

}  // namespace

CheckedReader::CheckedReader(const std::filesystem::path& folder, FileRecord record)
    : path_(folder / record.name), record_(std::move(record)), buffered_(kNoBlock) {
  descriptor_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat status {};
  if (descriptor_ < 0 || ::fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) {
    const std::string got = descriptor_ < 0 ? std::strerror(errno) : "something that is no file";
    if (descriptor_ >= 0) ::close(descriptor_);
    throw Damage(rule_got_fix(concat(name(), ": must be a file of the checkpoint."), got, kFix));
  }
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (size == record_.size) return;
  ::close(descriptor_);
  throw Damage(rule_got_fix(concat(name(), ": must be as long as its manifest says, ", record_.size, " bytes."),
                            size < record_.size ? concat("the end of the file at byte ", size)
                                                : concat("more from byte ", record_.size, " on"),
                            kFix));
}

CheckedReader::~CheckedReader() { ::close(descriptor_); }

std::uint64_t CheckedReader::block_size(std::uint64_t block) const {
  return std::min(kBlockBytes, record_.size - block * kBlockBytes);
}

void CheckedReader::load(std::uint64_t block, std::byte* into) {
  const std::uint64_t begin = block * kBlockBytes, size = block_size(block);
  if (begin + size > ahead_ || begin + kAheadBytes < ahead_) {
    ::posix_fadvise(descriptor_, static_cast<off_t>(begin), static_cast<off_t>(kAheadBytes), POSIX_FADV_WILLNEED);
    ahead_ = begin + kAheadBytes;
  }
  const std::size_t got = read_some(descriptor_, begin, {into, size});
  if (got < size)
    throw Damage(rule_got_fix(concat(name(), ": must be readable."), concat("no bytes from byte ", begin + got), kFix));
  if (XXH3_64bits(into, size) != record_.block_hashes[block])
    throw Damage(rule_got_fix(concat(name(), ": must be what was written."),
                              concat("bytes ", begin, " to ", begin + size, " that do not match their checksum"),
                              kFix));
}

void CheckedReader::read(std::uint64_t offset, std::span<std::byte> into) {
  if (offset > record_.size || into.size() > record_.size - offset)
    throw Damage(rule_got_fix(concat(name(), ": tensor data must lie within the file."),
                              concat(into.size(), " bytes at byte ", offset, " of ", record_.size)));
  while (!into.empty()) {
    const std::uint64_t block = offset / kBlockBytes, from = offset % kBlockBytes, size = block_size(block);
    const std::size_t part = std::min<std::size_t>(into.size(), size - from);
    if (part == size) {  // a whole block needs no buffer
      load(block, into.data());
    } else {
      if (block != buffered_) {
        buffer_.resize(kBlockBytes);
        buffered_ = kNoBlock;
        load(block, buffer_.data());
        buffered_ = block;
      }
      std::memcpy(into.data(), buffer_.data() + from, part);
    }
    into = into.subspan(part);
    offset += part;
  }
}

}  // namespace megatron::checkpoint
