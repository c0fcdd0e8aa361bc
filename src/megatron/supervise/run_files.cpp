#include "megatron/supervise/run_files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "megatron/base/text/json.h"
#include "megatron/base/text/printable.h"

namespace megatron::supervise {
namespace {

namespace fs = std::filesystem;

/// A descriptor of a regular file, closed at the end; negative: there is none.
class Descriptor {
 public:
  explicit Descriptor(const fs::path& path)
      : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)), is_file_(::fstat(fd_, &stat_) == 0) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  bool is_file() const { return is_file_ && S_ISREG(stat_.st_mode); }
  std::uint64_t inode() const { return stat_.st_ino; }
  std::uint64_t size() const { return static_cast<std::uint64_t>(stat_.st_size); }
  std::string read(std::uint64_t offset, std::size_t limit) const {
    std::string text(limit, '\0');
    const ssize_t got = ::pread(fd_, text.data(), limit, static_cast<off_t>(offset));
    text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    return text;
  }

 private:
  int fd_;
  struct stat stat_ {};
  bool is_file_;
};

double number_in(const nlohmann::json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_number() ? found->get<double>() : std::numeric_limits<double>::quiet_NaN();
}

std::int64_t count_in(const nlohmann::json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_number_integer() ? found->get<std::int64_t>() : 0;
}

/// What a step's line says of experts; nothing where it does not.
std::optional<ExpertPoint> experts_in(const nlohmann::json& object) {
  constexpr std::size_t kMaxCopies = 1 << 16;  // a picture has a cell for each
  if (!object.contains("expert_imbalance")) return std::nullopt;
  ExpertPoint point{.imbalance = number_in(object, "expert_imbalance"), .dropped = number_in(object, "expert_dropped")};
  if (const auto loads = object.find("expert_loads"); loads != object.end()) point.copies = expert_loads_of(*loads);
  if (!point.copies.empty() && point.copies.size() > kMaxCopies / point.copies.front().size()) point.copies.clear();
  return point;
}

}  // namespace

std::optional<std::string> small_file(const fs::path& path) {
  constexpr std::size_t kMaxBytes = 1 << 20;
  const Descriptor file(path);
  if (!file.is_file() || file.size() > kMaxBytes) return std::nullopt;
  return file.read(0, kMaxBytes);
}

std::optional<std::int64_t> newest_checkpoint(const fs::path& checkpoints) {
  constexpr std::string_view kPrefix = "iter_";
  const auto text = small_file(checkpoints / "latest");
  if (!text || !text->starts_with(kPrefix)) return std::nullopt;
  std::int64_t iteration = 0;
  const char* const begin = text->data() + kPrefix.size();
  const auto [end, error] = std::from_chars(begin, text->data() + text->size(), iteration);
  return error == std::errc() && end != begin && iteration >= 0 ? std::optional(iteration) : std::nullopt;
}

std::optional<Heartbeat> read_heartbeat(const fs::path& path) {
  const auto text = small_file(path);
  const auto object = text ? try_parse_json(*text) : std::nullopt;
  if (!object || !object->is_object()) return std::nullopt;
  Heartbeat beat{.unix_s = number_in(*object, "unix_s"),
                 .phase = "",
                 .iteration = count_in(*object, "iteration"),
                 .train_iters = count_in(*object, "train_iters"),
                 .operations = count_in(*object, "operations"),
                 .world_size = count_in(*object, "world_size")};
  if (const auto phase = object->find("phase"); phase != object->end() && phase->is_string())
    beat.phase = printable(phase->get<std::string>().substr(0, 60));
  return beat;
}

LineTail::Lines LineTail::next() {
  constexpr std::size_t kPart = 1 << 20, kMaxLine = 1 << 19;
  Lines result;
  const Descriptor file(path_);
  if (!file.is_file()) {
    result.again = std::exchange(inode_, 0) != 0;
    offset_ = 0;
    return result;
  }
  if (file.inode() != inode_ || file.size() < offset_) {
    result.again = true;
    inode_ = file.inode();
    offset_ = 0;
  }
  while (offset_ < file.size()) {
    const std::string text = file.read(offset_, kPart);
    const std::size_t last = text.rfind('\n');
    if (last == std::string::npos) {
      if (text.size() < kPart) break;  // a line that is being written
      offset_ += text.size();          // none of ours is as long
      continue;
    }
    for (std::size_t begin = 0; begin <= last;) {
      const std::size_t end = text.find('\n', begin);
      if (end > begin && end - begin <= kMaxLine) result.lines.push_back(text.substr(begin, end - begin));
      begin = end + 1;
    }
    offset_ += last + 1;
  }
  return result;
}

int restarts_told(const fs::path& events) {
  int restarts = 0;
  for (const std::string& line : LineTail(events).next().lines) {
    const auto object = try_parse_json(line);
    if (!object || !object->is_object()) continue;
    const auto source = object->find("source"), event = object->find("event");
    const bool told = source != object->end() && event != object->end();
    restarts += told && *source == "supervisor" && *event == "restart" ? 1 : 0;
  }
  return restarts;
}

RunCurves::RunCurves(const fs::path& out) : tail_(fs::is_regular_file(out) ? out : out / "metrics.jsonl") {}

bool RunCurves::update() {
  const LineTail::Lines news = tail_.next();
  if (news.again) {
    steps_.clear();
    validations_.clear();
    experts_.reset();
  }
  for (const std::string& line : news.lines) take(line);
  return news.again || !news.lines.empty();
}

void RunCurves::take(const std::string& line) {
  constexpr std::size_t kMaxPoints = 1'000'000;
  const auto object = try_parse_json(line);
  if (!object || !object->is_object()) return;
  const std::int64_t iteration = count_in(*object, "iteration");
  if (object->contains("valid_loss")) validations_.push_back({iteration, number_in(*object, "valid_loss")});
  if (validations_.size() >= kMaxPoints)
    validations_.erase(validations_.begin(), validations_.begin() + kMaxPoints / 2);
  if (!object->contains("loss")) return;
  if (auto experts = experts_in(*object)) experts_ = std::move(experts);
  const auto skipped = object->find("skipped");
  steps_.push_back({.iteration = iteration,
                    .loss = number_in(*object, "loss"),
                    .grad_norm = number_in(*object, "grad_norm"),
                    .learning_rate = number_in(*object, "learning_rate"),
                    .tokens_per_s = number_in(*object, "tokens_per_s"),
                    .step_ms = number_in(*object, "step_ms"),
                    .memory_bytes = number_in(*object, "memory_bytes"),
                    .peak_memory_bytes = number_in(*object, "peak_memory_bytes"),
                    .skipped = skipped != object->end() && skipped->is_boolean() && skipped->get<bool>()});
  if (steps_.size() < kMaxPoints) return;
  for (std::size_t i = 0; i < kMaxPoints / 2; ++i) steps_[i] = steps_[2 * i + 1];
  steps_.resize(kMaxPoints / 2);
}

bool is_free(const fs::path& folder) {
  const int file = ::open((folder / ".lock").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (file < 0) return false;
  const bool free = ::flock(file, LOCK_SH | LOCK_NB) == 0;
  ::close(file);
  return free;
}

}  // namespace megatron::supervise
