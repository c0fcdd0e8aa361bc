#include "megatron/checkpoint/files.h"

#include <algorithm>
#include <cstring>

#include "megatron/base/error.h"

namespace megatron::checkpoint {
namespace {
constexpr std::uint64_t kNoBlock = ~std::uint64_t{0};
}

HashedWriter::HashedWriter(const std::filesystem::path& path)
    : file_(path), record_{.name = path.filename(), .size = 0, .block_hashes = {}}, hash_(XXH3_createState()) {
  XXH3_64bits_reset(hash_.get());
}

void HashedWriter::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::size_t part = std::min<std::size_t>(bytes.size(), kBlockBytes - record_.size % kBlockBytes);
    file_.write(bytes.first(part));
    XXH3_64bits_update(hash_.get(), bytes.data(), part);
    record_.size += part;
    bytes = bytes.subspan(part);
    if (record_.size % kBlockBytes == 0) {
      record_.block_hashes.push_back(XXH3_64bits_digest(hash_.get()));
      XXH3_64bits_reset(hash_.get());
    }
  }
}

FileRecord HashedWriter::finish() {
  if (record_.size % kBlockBytes != 0) record_.block_hashes.push_back(XXH3_64bits_digest(hash_.get()));
  file_.commit();
  return record_;
}

CheckedReader::CheckedReader(const std::filesystem::path& folder, FileRecord record)
    : record_(std::move(record)), file_(folder / record_.name), checked_(kNoBlock) {
  const std::uint64_t size = file_.size();
  if (size != record_.size)
    throw ConfigError(rule_got_fix(concat(name(), ": must be as long as its manifest says, ", record_.size, " bytes."),
                                   size < record_.size ? concat("the end of the file at byte ", size)
                                                       : concat("more from byte ", record_.size, " on"),
                                   "load another checkpoint of the run"));
}

void CheckedReader::check(std::uint64_t block) {
  if (block == checked_) return;
  const std::uint64_t begin = block * kBlockBytes, size = std::min(kBlockBytes, record_.size - begin);
  if (XXH3_64bits(file_.bytes().data() + begin, size) != record_.block_hashes[block])
    throw ConfigError(rule_got_fix(concat(name(), ": must be what was written."),
                                   concat("bytes ", begin, " to ", begin + size, " that do not match their checksum"),
                                   "load another checkpoint of the run"));
  checked_ = block;
}

void CheckedReader::read(std::uint64_t offset, std::span<std::byte> into) {
  if (into.empty()) return;
  const std::byte* bytes = file_.range(offset, into.size(), 1, "tensor data").data();
  while (!into.empty()) {
    check(offset / kBlockBytes);
    const std::size_t part = std::min<std::size_t>(into.size(), kBlockBytes - offset % kBlockBytes);
    std::memcpy(into.data(), bytes, part);
    into = into.subspan(part);
    bytes += part;
    offset += part;
  }
}

}  // namespace megatron::checkpoint
