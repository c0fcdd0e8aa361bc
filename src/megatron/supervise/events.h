#pragma once
#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace megatron::supervise {

/// train.out/events.jsonl: what happened to a run besides its steps, one JSON object per line with `time` (UTC),
/// `source` and `event` first. The run and who supervises it append to the same file, each line in one write.
class EventLog {
 public:
  /// `source`: "run" or "supervisor". Writes nothing yet. `may_write`: whether the file is this run's; empty: it is.
  EventLog(std::filesystem::path path, std::string source, std::function<bool()> may_write = {});

  /// Appends an event with the members of the object `details`. While the file's folder is not there, or is another
  /// run's, events wait: who supervises makes no folder. A file that cannot be written costs a warning, once, and no
  /// run.
  void write(std::string_view event, const nlohmann::ordered_json& details);
  /// Events that wait, if the folder is there and this run's now.
  void flush();

 private:
  std::filesystem::path path_;
  std::string source_, waiting_;
  std::function<bool()> may_write_;
  bool has_warned_ = false;
};

/// Appends `text`, whole lines, to a file in one write. Throws std::runtime_error where that cannot be done.
void append_lines(const std::filesystem::path& path, std::string_view text);

/// Puts `text` in the place of a file that others read while it changes: they see the old one or the new one. After a
/// crash of the machine it may be neither. Throws std::runtime_error.
void replace_file(const std::filesystem::path& path, std::string_view text);

/// The present moment, "2026-11-24T07:12:04.885Z".
std::string utc_now();

}  // namespace megatron::supervise
