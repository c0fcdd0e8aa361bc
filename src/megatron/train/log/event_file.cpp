#include "megatron/train/log/event_file.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string_view>

#include "megatron/base/error.h"
#include "megatron/base/files/checksum.h"
#include "megatron/base/files/file.h"
#include "megatron/base/files/write_error.h"
#include "megatron/base/text/format.h"
#include "megatron/base/text/protobuf.h"

namespace megatron::train {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "events.out.tfevents.", kSamples = " vs samples", kValidation = " validation";
// Fields of the messages Event, Summary and Summary.Value.
constexpr std::uint32_t kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kValue = 1, kTag = 1,
                        kSimpleValue = 2;

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

template <class T>
std::string little_endian(T value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

// A checksum as TFRecord files have it.
std::uint32_t masked_crc(std::string_view bytes) {
  const std::uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8U;
}

// What the first record of `bytes` holds; nothing where it is damaged or cut off.
std::optional<std::string_view> first_record(std::string_view bytes) {
  constexpr std::size_t kHeader = 12, kFooter = 4;
  if (bytes.size() < kHeader + kFooter) return std::nullopt;
  const auto read = [&]<class T>(std::size_t at, T value) {
    std::memcpy(&value, bytes.data() + at, sizeof value);
    return value;
  };
  const auto size = read(0, std::uint64_t{});
  if (read(8, std::uint32_t{}) != masked_crc(bytes.substr(0, 8)) || size > bytes.size() - kHeader - kFooter)
    return std::nullopt;
  const std::string_view data = bytes.substr(kHeader, size);
  if (read(kHeader + size, std::uint32_t{}) != masked_crc(data)) return std::nullopt;
  return data;
}

/// What an event that this program wrote is of.
struct EventKind {
  std::int64_t step = 0;
  std::string_view tag;  ///< of its first value; empty: the file's version
};

// Reads fields in the order in which write() puts them.
std::optional<EventKind> kind_of(std::string_view event) {
  ProtobufReader in(event);
  if (!in.key(kWallTime, 1) || !in.take(8)) return std::nullopt;
  if (in.key(kFileVersion, 2)) return EventKind{};
  if (!in.key(kStep, 0)) return std::nullopt;
  const auto step = in.integer();
  if (!step || !in.key(kSummary, 2) || !in.integer() || !in.key(kValue, 2) || !in.integer() || !in.key(kTag, 2))
    return std::nullopt;
  const auto tag = in.bytes();
  if (!tag) return std::nullopt;
  return EventKind{static_cast<std::int64_t>(*step), *tag};
}

bool is_after(const EventKind& event, const ResumePoint& resume) {
  // Events against samples follow those of the same moment against iterations, so that the latter decide for both.
  if (event.tag.ends_with(kSamples)) return false;
  return event.step >
         (event.tag.find(kValidation) != std::string_view::npos ? resume.validated_iteration : resume.iteration);
}

// The seconds that a file's name begins with; nothing where it is no event file.
std::optional<std::int64_t> time_in(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const std::string digits(name.substr(kPrefix.size(), std::min<std::size_t>(name.size() - kPrefix.size(), 18)));
  char* end = nullptr;
  const std::int64_t seconds = std::strtoll(digits.c_str(), &end, 10);
  return end == digits.c_str() || *end != '.' ? std::nullopt : std::optional(seconds);
}

std::string host_name() {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) return "localhost";
  return host.data();
}

}  // namespace

std::size_t length_until(std::string_view records, const ResumePoint& resume) {
  constexpr std::size_t kFraming = 16;
  std::size_t length = 0;
  bool has_values = false;
  while (const auto record = first_record(records.substr(length))) {
    const auto event = kind_of(*record);
    if (!event || is_after(*event, resume)) break;
    has_values = has_values || !event->tag.empty();
    length += kFraming + record->size();
  }
  return has_values ? length : 0;
}

EventFile::EventFile(const fs::path& folder, const std::string& run, const ResumePoint& resume) {
  make_folder(folder);
  const std::string suffix = ".megatron-" + run;
  auto seconds = static_cast<std::int64_t>(seconds_since_1970());
  std::vector<fs::path> own;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    const auto written = time_in(name);
    if (!written || !name.ends_with(suffix) || !entry.is_regular_file()) continue;
    own.push_back(entry.path());
    seconds = std::max(seconds, *written + 1);
  }
  for (const fs::path& path : own) {
    const std::size_t length = resume.iteration == 0 ? 0 : length_until(MappedFile(path).text(), resume);
    if (length == 0)
      fs::remove(path);
    else if (length < fs::file_size(path))
      fs::resize_file(path, length);
  }
  path_ = folder / fmt::format("{}{:010}.{}.{}{}", kPrefix, seconds, host_name(), ::getpid(), suffix);
  file_.reset(std::fopen(path_.c_str(), "wxe"));
  if (!file_) throw std::runtime_error(write_error(path_, "cannot be created", errno));
  write_record(ProtobufMessage().real(kWallTime, seconds_since_1970()).bytes(kFileVersion, "brain.Event:2").encoded());
  flush();
}

void EventFile::write(const std::vector<Scalar>& scalars) {
  const double now = seconds_since_1970();
  for (auto first = scalars.begin(); first != scalars.end();) {
    const auto end = std::find_if(first, scalars.end(), [&](const Scalar& s) { return s.step != first->step; });
    ProtobufMessage summary;
    for (auto scalar = first; scalar != end; ++scalar)
      summary.bytes(
          kValue,
          ProtobufMessage().bytes(kTag, scalar->tag).single(kSimpleValue, static_cast<float>(scalar->value)).encoded());
    write_record(ProtobufMessage()
                     .real(kWallTime, now)
                     .integer(kStep, static_cast<std::uint64_t>(first->step))
                     .bytes(kSummary, summary.encoded())
                     .encoded());
    first = end;
  }
  flush();
}

void EventFile::write_record(const std::string& event) {
  const std::string size = little_endian(std::uint64_t{event.size()});
  const std::string record = size + little_endian(masked_crc(size)) + event + little_endian(masked_crc(event));
  if (std::fwrite(record.data(), 1, record.size(), file_.get()) != record.size())
    throw std::runtime_error(write_error(path_, "cannot be written", errno));
}

void EventFile::flush() {
  if (std::fflush(file_.get()) != 0) throw std::runtime_error(write_error(path_, "cannot be written", errno));
}

}  // namespace megatron::train
