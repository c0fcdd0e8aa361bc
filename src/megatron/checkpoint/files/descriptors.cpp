#include "megatron/checkpoint/files/descriptors.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "megatron/base/error.h"
#include "megatron/base/files/regular_file.h"
#include "megatron/checkpoint/files/manifest.h"

namespace megatron::checkpoint {

int open_to_read(const std::filesystem::path& path) {
  const OpenedFile file = open_regular(path);
  if (file.descriptor >= 0) return file.descriptor;
  if (file.is_other)
    throw Damage(rule_got_fix(concat(path.string(), ": must be a file of the checkpoint."),
                              "a folder, a pipe or a device, no regular file", kLoadAnother));
  const int error = file.error;
  if (error == ENOENT || error == ENOTDIR || error == ELOOP || error == ENAMETOOLONG)
    throw Damage(
        rule_got_fix(concat(path.string(), ": must be a file of the checkpoint."), std::strerror(error), kLoadAnother));
  throw std::runtime_error(concat(path.string(), ": cannot be opened: ", std::strerror(error)));
}

std::size_t read_at(int descriptor, std::uint64_t offset, std::span<std::byte> into,
                    const std::filesystem::path& path) {
  std::size_t done = 0;
  while (done < into.size()) {
    const ssize_t got = ::pread(descriptor, into.data() + done, into.size() - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      throw std::runtime_error(
          concat(path.string(), ": cannot be read at byte ", offset + done, ": ", std::strerror(errno)));
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  return done;
}

}  // namespace megatron::checkpoint
