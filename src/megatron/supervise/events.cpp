#include "megatron/supervise/events.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/files/write_error.h"
#include "megatron/base/text/format.h"
#include "megatron/base/text/printable.h"

namespace megatron::supervise {
namespace {

namespace fs = std::filesystem;

void write_whole(const fs::path& path, int flags, std::string_view text) {
  // A pipe that nobody reads is an error, and nothing to wait for.
  const int fd = ::open(path.c_str(), flags | O_CREAT | O_WRONLY | O_CLOEXEC | O_NONBLOCK, 0666);
  if (fd < 0) throw std::runtime_error(write_error(path, "cannot be opened", errno));
  ssize_t written = 0;
  do written = ::write(fd, text.data(), text.size());
  while (written < 0 && errno == EINTR);
  const int error = errno;
  ::close(fd);
  if (written < 0 || static_cast<std::size_t>(written) != text.size())
    throw std::runtime_error(write_error(path, "cannot be written", written < 0 ? error : ENOSPC));
}

}  // namespace

std::string utc_now() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
  const std::time_t seconds = ms / 1000;
  std::tm utc{};
  ::gmtime_r(&seconds, &utc);
  char text[32];
  const std::size_t size = std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
  return fmt::format("{}.{:03}Z", std::string_view(text, size), ms % 1000);
}

void append_lines(const fs::path& path, std::string_view text) { write_whole(path, O_APPEND, text); }

void replace_file(const fs::path& path, std::string_view text) {
  fs::path other = path;
  other += concat(".", ::getpid(), ".tmp");
  try {
    write_whole(other, O_TRUNC, text);
  } catch (...) {
    ::unlink(other.c_str());
    throw;
  }
  if (::rename(other.c_str(), path.c_str()) == 0) return;
  const int error = errno;
  ::unlink(other.c_str());
  throw std::runtime_error(write_error(path, "cannot be written", error));
}

EventLog::EventLog(fs::path path, std::string source, std::function<bool()> may_write)
    : path_(std::move(path)), source_(std::move(source)), may_write_(std::move(may_write)) {}

void EventLog::write(std::string_view event, const nlohmann::ordered_json& details) {
  nlohmann::ordered_json object = {{"time", utc_now()}, {"source", source_}, {"event", event}};
  object.update(details);
  waiting_ += object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  flush();
}

void EventLog::flush() {
  std::error_code ignored;
  if (waiting_.empty() || !fs::is_directory(path_.parent_path(), ignored) || (may_write_ && !may_write_())) return;
  try {
    append_lines(path_, waiting_);
  } catch (const std::exception& error) {
    if (!std::exchange(has_warned_, true)) write_line(stderr, concat("warning: ", error.what()));
  }
  waiting_.clear();
}

}  // namespace megatron::supervise
