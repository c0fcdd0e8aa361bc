#include "megatron/train/log/wandb_file.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <ctime>
#include <exception>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <stdexcept>
#include <utility>
#include <variant>

#include "megatron/base/error.h"
#include "megatron/base/files/checksum.h"
#include "megatron/base/files/file.h"
#include "megatron/base/files/write_error.h"
#include "megatron/base/text/format.h"
#include "megatron/base/text/printable.h"
#include "megatron/base/text/protobuf.h"
#include "megatron/base/version.h"
#include "megatron/config/options.h"

namespace megatron::train {
namespace {

namespace fs = std::filesystem;

// A log in LevelDB's format: fragments of records in blocks; a header of its own comes first.
constexpr std::string_view kFileHeader{":W&B\xe1\xbe\0", 7};
constexpr std::uint64_t kBlock = 32768, kFragmentHeader = 7;
enum FragmentType : char { kFull = 1, kFirst = 2, kMiddle = 3, kLast = 4 };

// Fields of the messages Record, HistoryRecord, HistoryItem and SummaryItem, RunRecord, ConfigRecord and ConfigItem.
constexpr std::uint32_t kNumber = 1, kHistory = 2, kSummary = 3, kRun = 17, kExit = 18, kHeader = 21;
constexpr std::uint32_t kItem = 1, kStep = 2, kNestedKey = 2, kKey = 1, kValueJson = 16, kUpdate = 1;

std::uint32_t fragment_crc(char type, std::string_view data) { return crc32(std::string(1, type).append(data)); }

struct Fragment {
  char type = 0;
  std::string_view data;
};

// The fragment at `offset`, whose block has room for it; nothing where it is damaged or cut off.
std::optional<Fragment> fragment_at(std::string_view file, std::uint64_t offset) {
  if (offset > file.size() || file.size() - offset < kFragmentHeader) return std::nullopt;
  std::uint32_t crc = 0;
  std::uint16_t size = 0;
  std::memcpy(&crc, file.data() + offset, 4);
  std::memcpy(&size, file.data() + offset + 4, 2);
  const char type = file[offset + 6];
  offset += kFragmentHeader;
  if (size > file.size() - offset || offset % kBlock + size > kBlock) return std::nullopt;
  const std::string_view data = file.substr(offset, size);
  if (type < kFull || type > kLast || crc != fragment_crc(type, data)) return std::nullopt;
  return Fragment{type, data};
}

std::uint64_t next_header(std::uint64_t offset) {
  const std::uint64_t left = kBlock - offset % kBlock;
  return left < kFragmentHeader ? offset + left : offset;
}

// The record that begins at `offset`, which then is behind it.
std::optional<std::string> record_at(std::string_view file, std::uint64_t& offset) {
  std::string record;
  for (bool first = true;; first = false) {
    const std::uint64_t begin = next_header(offset);
    const auto fragment = fragment_at(file, begin);
    if (!fragment || first != (fragment->type == kFull || fragment->type == kFirst)) return std::nullopt;
    record += fragment->data;
    offset = begin + kFragmentHeader + fragment->data.size();
    if (fragment->type == kFull || fragment->type == kLast) return record;
  }
}

// Whether a record that this program wrote belongs to a run that resumes at `iteration`.
bool belongs(std::string_view record, std::int64_t iteration) {
  ProtobufReader in(record);
  if (!in.key(kNumber, 0) || !in.integer()) return false;
  if (in.key(kHeader, 2) || in.key(kRun, 2)) return true;
  if (!in.key(kHistory, 2) || !in.integer() || !in.key(kStep, 2) || !in.integer() || !in.key(kNumber, 0)) return false;
  const auto step = in.integer();
  return step && static_cast<std::int64_t>(*step) <= iteration;
}

std::string json_of(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return fmt::format("{}", value);
}

std::string item(std::uint32_t key_field, const std::string& key, const std::string& json) {
  return ProtobufMessage().bytes(key_field, key).bytes(kValueJson, json).encoded();
}

std::string config_message(const config::RunConfig& config) {
  config::RunConfig copy = config;
  ProtobufMessage message;
  message.bytes(kUpdate, item(kKey, "_wandb", "{}"));
  for (const config::Field& field : config::fields_of(copy).fields) {
    const auto json = std::visit([](const auto* value) { return nlohmann::json(*value); }, field.value);
    message.bytes(kUpdate, item(kKey, field.path, json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)));
  }
  return message.encoded();
}

double now_s() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

std::string time_text() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  std::array<char, 32> text{};
  return {text.data(), std::strftime(text.data(), text.size(), "%Y%m%d_%H%M%S", &local)};
}

std::string own_host() {
  std::array<char, 256> host{};
  return ::gethostname(host.data(), host.size() - 1) == 0 ? host.data() : "localhost";
}

// The newest log of a run whose id begins with `stem`; empty: there is none.
fs::path newest_log(const fs::path& folder, const std::string& stem) {
  fs::path newest;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    const std::size_t id = name.rfind('-') + 1;
    if (!name.starts_with("offline-run-") || name.compare(id, stem.size(), stem) != 0) continue;
    const fs::path log = entry.path() / ("run-" + name.substr(id) + ".wandb");
    if (fs::is_regular_file(log) && (newest.empty() || newest.parent_path() < entry.path())) newest = log;
  }
  return newest;
}

}  // namespace

KeptLog kept_log(std::string_view file, std::int64_t iteration) {
  if (!file.starts_with(kFileHeader)) return {};
  KeptLog kept{.bytes = kFileHeader.size(), .records = 0};
  for (std::uint64_t offset = kept.bytes;;) {
    const auto record = record_at(file, offset);
    if (!record || !belongs(*record, iteration)) return kept;
    kept = {.bytes = offset, .records = kept.records + 1};
  }
}

WandbFile::WandbFile(const config::RunConfig& config, const ResumePoint& resume)
    : exceptions_(std::uncaught_exceptions()) {
  const config::LogConfig& log = config.log;
  const fs::path out = config.train.out;
  const fs::path folder = (log.wandb_save_dir.empty() ? out : fs::path(log.wandb_save_dir)) / "wandb";
  const std::string stem = fmt::format("{:08x}", crc32(fs::absolute(out).lexically_normal().string()));
  if (resume.iteration > 0) path_ = newest_log(folder, stem);
  if (!path_.empty()) {
    const KeptLog kept = kept_log(MappedFile(path_).text(), resume.iteration);
    if (kept.records > 0) {
      fs::resize_file(path_, kept.bytes);
      file_.reset(std::fopen(path_.c_str(), "ae"));
      if (!file_) throw std::runtime_error(write_error(path_, "cannot be opened", errno));
      offset_ = kept.bytes;
      records_ = kept.records;
      return;
    }
  }
  start(config, folder, stem + fmt::format("{:08x}", std::random_device()()));
}

void WandbFile::start(const config::RunConfig& config, const fs::path& folder, const std::string& id) {
  const config::LogConfig& log = config.log;
  const fs::path run = folder / ("offline-run-" + time_text() + "-" + id);
  make_folder(run / "files");
  path_ = run / ("run-" + id + ".wandb");
  file_.reset(std::fopen(path_.c_str(), "wxe"));
  if (!file_ || std::fwrite(kFileHeader.data(), 1, kFileHeader.size(), file_.get()) != kFileHeader.size())
    throw std::runtime_error(write_error(path_, "cannot be created", errno));
  offset_ = kFileHeader.size();
  const std::string version = ProtobufMessage().bytes(1, "megatron-cpp " + std::string(program_version())).encoded();
  write_record(kHeader, ProtobufMessage().bytes(1, version).encoded());
  const std::string name = log.wandb_exp_name.empty()
                               ? fs::absolute(config.train.out).lexically_normal().filename().string()
                               : log.wandb_exp_name;
  const ProtobufMessage time = ProtobufMessage().integer(1, static_cast<std::uint64_t>(now_s()));
  ProtobufMessage message;
  message.bytes(1, id);
  if (!log.wandb_entity.empty()) message.bytes(2, log.wandb_entity);
  message.bytes(3, log.wandb_project)
      .bytes(4, config_message(config))
      .bytes(8, name)
      .bytes(13, own_host())
      .bytes(17, time.encoded());
  write_record(kRun, message.encoded());
}

WandbFile::~WandbFile() {
  try {
    write_row();
    if (std::uncaught_exceptions() == exceptions_) write_end();
  } catch (const std::exception& error) {
    write_line(stderr, error.what());
  }
}

void WandbFile::write(const std::vector<Scalar>& scalars, std::int64_t iteration, std::int64_t samples) {
  if (iteration != row_) write_row();
  row_ = iteration;
  values_["samples vs steps"] = fmt::format("{}", samples);
  for (const Scalar& scalar : scalars)
    if (!scalar.tag.ends_with(" vs samples")) values_[scalar.tag] = json_of(scalar.value);
}

void WandbFile::write_row() {
  if (row_ == 0) return;
  const auto step = static_cast<std::uint64_t>(std::exchange(row_, 0));
  values_["_step"] = fmt::format("{}", step);
  values_["_timestamp"] = json_of(now_s());
  ProtobufMessage message;
  message.bytes(kStep, ProtobufMessage().integer(1, step).encoded());
  for (const auto& [tag, json] : values_) {
    message.bytes(kItem, item(kNestedKey, tag, json));
    last_values_[tag] = json;
  }
  values_.clear();
  write_record(kHistory, message.encoded());
}

void WandbFile::write_end() {
  ProtobufMessage summary;
  for (const auto& [tag, json] : last_values_) summary.bytes(kUpdate, item(kNestedKey, tag, json));
  write_record(kSummary, summary.encoded());
  write_record(kExit, "");
}

void WandbFile::write_record(std::uint32_t field, const std::string& message) {
  const std::string record = ProtobufMessage().integer(kNumber, ++records_).bytes(field, message).encoded();
  std::string text;
  std::string_view rest = record;
  for (bool first = true; first || !rest.empty(); first = false) {
    const std::uint64_t begin = next_header(offset_);
    text.append(begin - offset_, '\0');
    const std::uint64_t room = kBlock - begin % kBlock - kFragmentHeader;
    const std::string_view data = rest.substr(0, room);
    rest.remove_prefix(data.size());
    const char type = first ? (rest.empty() ? kFull : kFirst) : rest.empty() ? kLast : kMiddle;
    const std::uint32_t crc = fragment_crc(type, data);
    const auto size = static_cast<std::uint16_t>(data.size());
    text.append(reinterpret_cast<const char*>(&crc), 4).append(reinterpret_cast<const char*>(&size), 2);
    text += type;
    text += data;
    offset_ = begin + kFragmentHeader + data.size();
  }
  if (std::fwrite(text.data(), 1, text.size(), file_.get()) != text.size() || std::fflush(file_.get()) != 0)
    throw std::runtime_error(write_error(path_, "cannot be written", errno));
}

}  // namespace megatron::train
