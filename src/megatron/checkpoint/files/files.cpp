#include "megatron/checkpoint/files/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "megatron/checkpoint/files/descriptors.h"
#include "megatron/checkpoint/slices/read_plan.h"

namespace megatron::checkpoint {
namespace {

constexpr std::uint64_t kNoBlock = ~std::uint64_t{0};
constexpr std::size_t kBlocksAhead = 16;  // as many requests keep a disk busy

}  // namespace

CheckedReader::CheckedReader(const std::filesystem::path& folder, FileRecord record)
    : path_(folder / record.name), record_(std::move(record)), buffered_(kNoBlock) {
  descriptor_ = open_to_read(path_);
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) {
    const int error = errno;
    ::close(descriptor_);
    throw std::runtime_error(concat(name(), ": its size is not known: ", std::strerror(error)));
  }
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (size == record_.size) {
    // Nothing is fetched but what fetch_ahead() asks for.
    ::posix_fadvise(descriptor_, 0, 0, POSIX_FADV_RANDOM);
    return;
  }
  ::close(descriptor_);
  throw Damage(rule_got_fix(concat(name(), ": must be as long as its manifest says, ", record_.size, " bytes."),
                            size < record_.size ? concat("the end of the file at byte ", size)
                                                : concat("more from byte ", record_.size, " on"),
                            kLoadAnother));
}

CheckedReader::~CheckedReader() { ::close(descriptor_); }

void CheckedReader::expect(std::uint64_t offset, std::uint64_t size) {
  if (loaded_ == expected_.size()) {
    expected_.clear();
    loaded_ = asked_for_ = 0;
  }
  if (size == 0 || offset > record_.size || size > record_.size - offset) return;
  for (std::uint64_t block = offset / kBlockBytes; block <= (offset + size - 1) / kBlockBytes; ++block)
    if (block != (expected_.empty() ? buffered_ : expected_.back())) expected_.push_back(block);
}

// `block` is loaded now. One request a block: the system cuts longer ones short.
void CheckedReader::fetch_ahead(std::uint64_t block) {
  const auto begin = expected_.begin() + static_cast<std::ptrdiff_t>(loaded_);
  const auto found = std::find(begin, expected_.end(), block);
  // In another order than was said: nothing is known.
  if (found == expected_.end()) expected_.clear();
  loaded_ = expected_.empty() ? 0 : static_cast<std::size_t>(found - expected_.begin()) + 1;
  asked_for_ = expected_.empty() ? 0 : std::max(asked_for_, loaded_);
  for (; asked_for_ < std::min(expected_.size(), loaded_ + kBlocksAhead); ++asked_for_)
    ::posix_fadvise(descriptor_, static_cast<off_t>(expected_[asked_for_] * kBlockBytes),
                    static_cast<off_t>(kBlockBytes), POSIX_FADV_WILLNEED);
}

void CheckedReader::load(std::uint64_t block, std::byte* into) {
  const std::uint64_t begin = block * kBlockBytes, size = block_bytes(record_, block);
  fetch_ahead(block);
  const std::size_t got = read_at(descriptor_, begin, {into, size}, path_);
  if (got < size)
    throw Damage(
        rule_got_fix(concat(name(), ": must be readable."), concat("no bytes from byte ", begin + got), kLoadAnother));
  if (XXH3_64bits(into, size) != record_.block_hashes[block])
    throw Damage(rule_got_fix(concat(name(), ": must be what was written."),
                              concat("bytes ", begin, " to ", begin + size, " that do not match their checksum"),
                              kLoadAnother));
  bytes_read_ += size;
}

void CheckedReader::read(std::uint64_t offset, std::span<std::byte> into) {
  if (offset > record_.size || into.size() > record_.size - offset)
    throw Damage(rule_got_fix(concat(name(), ": tensor data must lie within the file."),
                              concat(into.size(), " bytes at byte ", offset, " of ", record_.size), kLoadAnother));
  if (into.size() > kBlockBytes && loaded_ == expected_.size()) expect(offset, into.size());
  while (!into.empty()) {
    const std::uint64_t block = offset / kBlockBytes, from = offset % kBlockBytes, size = block_bytes(record_, block);
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
