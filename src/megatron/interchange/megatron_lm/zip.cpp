#include "megatron/interchange/megatron_lm/zip.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/base/text/printable.h"

namespace megatron::interchange {
namespace {

// Sizes and signatures of the records in the ZIP specification (APPNOTE 6.3.10, 4.3).
constexpr std::uint32_t kLocalSignature = 0x04034b50, kCentralSignature = 0x02014b50, kEndSignature = 0x06054b50,
                        kEnd64Signature = 0x06064b50, kLocator64Signature = 0x07064b50;
constexpr std::uint64_t kLocalBytes = 30, kCentralBytes = 46, kEndBytes = 22, kEnd64Bytes = 56, kLocator64Bytes = 20;
constexpr std::uint64_t kMaxCommentBytes = 0xFFFF;
constexpr std::uint16_t kZip64Field = 1, kEncrypted = 1;

class Reader {
 public:
  Reader(std::span<const std::byte> bytes, const std::string& file) : bytes_(bytes), file_(file) {}

  [[noreturn]] void damaged(std::uint64_t at, const std::string& got) const {
    throw ConfigError(rule_got_fix(concat(file_, ": must be a whole file of torch.save (a ZIP archive)."),
                                   concat(got, " at byte ", at), "save it again with torch 1.6 or later"));
  }

  std::span<const std::byte> range(std::uint64_t at, std::uint64_t size, const char* what) const {
    if (at > bytes_.size() || size > bytes_.size() - at)
      damaged(at, concat("the end of the file, ", bytes_.size(), " bytes long, in ", what));
    return bytes_.subspan(at, size);
  }

  template <class T>
  T value(std::uint64_t at) const {
    T result;
    std::memcpy(&result, range(at, sizeof(T), "a record").data(), sizeof(T));
    return result;
  }

  std::string text(std::uint64_t at, std::uint64_t size) const {
    const auto part = range(at, size, "a name");
    return {reinterpret_cast<const char*>(part.data()), part.size()};
  }

  std::uint64_t size() const { return bytes_.size(); }

 private:
  std::span<const std::byte> bytes_;
  const std::string& file_;
};

struct Directory {
  std::uint64_t begin = 0, size = 0, entries = 0;
};

std::uint64_t find_end(const Reader& zip) {
  if (zip.size() < kEndBytes) zip.damaged(0, concat("a file of ", zip.size(), " bytes"));
  const std::uint64_t last = zip.size() - kEndBytes, first = last > kMaxCommentBytes ? last - kMaxCommentBytes : 0;
  for (std::uint64_t at = last + 1; at-- > first;)
    if (zip.value<std::uint32_t>(at) == kEndSignature && zip.value<std::uint16_t>(at + 20) == last - at) return at;
  zip.damaged(last, "no end of the archive's directory");
}

Directory find_directory(const Reader& zip) {
  const std::uint64_t end = find_end(zip);
  Directory directory{.begin = zip.value<std::uint32_t>(end + 16),
                      .size = zip.value<std::uint32_t>(end + 12),
                      .entries = zip.value<std::uint16_t>(end + 10)};
  if (end >= kLocator64Bytes && zip.value<std::uint32_t>(end - kLocator64Bytes) == kLocator64Signature) {
    const auto end64 = zip.value<std::uint64_t>(end - kLocator64Bytes + 8);
    zip.range(end64, kEnd64Bytes, "the Zip64 end of the directory");
    if (zip.value<std::uint32_t>(end64) != kEnd64Signature) zip.damaged(end64, "no Zip64 end of the directory");
    directory = {.begin = zip.value<std::uint64_t>(end64 + 48),
                 .size = zip.value<std::uint64_t>(end64 + 40),
                 .entries = zip.value<std::uint64_t>(end64 + 32)};
  }
  zip.range(directory.begin, directory.size, "the directory");
  if (directory.entries > directory.size / kCentralBytes)
    zip.damaged(directory.begin, concat(directory.entries, " entries in a directory of ", directory.size, " bytes"));
  return directory;
}

struct CentralRecord {
  std::string name;
  std::uint64_t packed = 0, size = 0, local = 0, bytes = 0;
};

/// Replaces what does not fit into 32 bits by the values of the record's Zip64 field.
void read_zip64(const Reader& zip, std::uint64_t extra, std::uint64_t end, CentralRecord& record) {
  constexpr std::uint64_t kElsewhere = 0xFFFFFFFF;
  while (end - extra >= 4) {
    const auto kind = zip.value<std::uint16_t>(extra);
    const std::uint64_t next = extra + 4 + zip.value<std::uint16_t>(extra + 2);
    if (next > end) zip.damaged(extra, "an extra field that is longer than its record");
    extra += 4;
    for (std::uint64_t* const field : {&record.size, &record.packed, &record.local}) {
      if (kind != kZip64Field || *field != kElsewhere) continue;
      if (next - extra < 8) zip.damaged(extra, "a Zip64 field without the sizes");
      *field = zip.value<std::uint64_t>(extra);
      extra += 8;
    }
    extra = next;
  }
}

CentralRecord read_record(const Reader& zip, std::uint64_t at, std::uint64_t end) {
  if (end - at < kCentralBytes || zip.value<std::uint32_t>(at) != kCentralSignature)
    zip.damaged(at, "no record of the directory");
  const std::uint64_t name = zip.value<std::uint16_t>(at + 28), extra = zip.value<std::uint16_t>(at + 30),
                      comment = zip.value<std::uint16_t>(at + 32);
  CentralRecord record{.name = {},
                       .packed = zip.value<std::uint32_t>(at + 20),
                       .size = zip.value<std::uint32_t>(at + 24),
                       .local = zip.value<std::uint32_t>(at + 42),
                       .bytes = kCentralBytes + name + extra + comment};
  if (record.bytes > end - at) zip.damaged(at, "a record that is longer than the directory");
  record.name = zip.text(at + kCentralBytes, name);
  if ((zip.value<std::uint16_t>(at + 8) & kEncrypted) != 0) zip.damaged(at, "an encrypted file");
  if (zip.value<std::uint16_t>(at + 10) != 0) zip.damaged(at, "a compressed file, which torch.save does not write,");
  read_zip64(zip, at + kCentralBytes + name, at + kCentralBytes + name + extra, record);
  if (record.packed != record.size) zip.damaged(at, "two sizes of a stored file");
  return record;
}

ZipEntry locate(const Reader& zip, const CentralRecord& record) {
  zip.range(record.local, kLocalBytes, "a local header");
  if (zip.value<std::uint32_t>(record.local) != kLocalSignature) zip.damaged(record.local, "no local header");
  const std::uint64_t name = zip.value<std::uint16_t>(record.local + 26),
                      extra = zip.value<std::uint16_t>(record.local + 28);
  if (zip.text(record.local + kLocalBytes, name) != record.name)
    zip.damaged(record.local, "another name than in the directory");
  const ZipEntry entry{.begin = record.local + kLocalBytes + name + extra, .size = record.size};
  zip.range(entry.begin, entry.size, "a file of the archive");
  return entry;
}

}  // namespace

std::map<std::string, ZipEntry> read_zip(std::span<const std::byte> bytes, const std::string& file) {
  const Reader zip(bytes, file);
  const Directory directory = find_directory(zip);
  std::map<std::string, ZipEntry> entries;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> taken;  // from a local header to the end of its file
  std::uint64_t at = directory.begin;
  const std::uint64_t end = directory.begin + directory.size;
  for (std::uint64_t i = 0; i < directory.entries; ++i) {
    const CentralRecord record = read_record(zip, at, end);
    const ZipEntry entry = locate(zip, record);
    if (!entries.emplace(record.name, entry).second)
      zip.damaged(at, concat("the file \"", printable(record.name), "\" twice"));
    taken.emplace_back(record.local, entry.begin + entry.size);
    at += record.bytes;
  }
  std::sort(taken.begin(), taken.end());
  for (std::size_t i = 1; i < taken.size(); ++i)
    if (taken[i].first < taken[i - 1].second) zip.damaged(taken[i].first, "files that overlap");
  return entries;
}

}  // namespace megatron::interchange
