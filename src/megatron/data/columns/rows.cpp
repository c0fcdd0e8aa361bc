#include "megatron/data/columns/rows.h"

#include "megatron/base/error.h"

namespace megatron::data {

void ColumnFile::damaged(std::uint64_t offset, const std::string& rule, const std::string& got) const {
  throw ConfigError(
      rule_got_fix(concat(name, ", byte ", offset, ": ", rule), got, "copy the file again: it is cut off or damaged"));
}

void ColumnFile::not_read(const std::string& rule, const std::string& got) const {
  throw ConfigError(rule_got_fix(concat(name, ": ", rule), got,
                                 "write it again, for instance with pyarrow: pq.write_table(pq.read_table(IN), OUT)"));
}

std::span<const std::byte> ColumnFile::part(std::uint64_t offset, std::uint64_t size, const char* what) const {
  if (offset > bytes.size() || size > bytes.size() - offset)
    damaged(offset, concat(what, " must lie in the file, which has ", bytes.size(), " bytes."),
            concat(size, " bytes from there"));
  return bytes.subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(size));
}

}  // namespace megatron::data
