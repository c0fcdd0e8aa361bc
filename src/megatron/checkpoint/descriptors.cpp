#include "megatron/checkpoint/descriptors.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "megatron/base/error.h"
#include "megatron/checkpoint/manifest.h"

namespace megatron::checkpoint {

int open_to_read(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor >= 0) return descriptor;
  const int error = errno;
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
