#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "megatron/supervise/expert_loads.h"

// What a run has written about itself, read by others while it is written. Nothing here throws for what a file says.
namespace megatron::supervise {

/// The text of a file of at most 1 MiB; nothing where it cannot be read.
std::optional<std::string> small_file(const std::filesystem::path& path);

/// Whether a run's folder has a file .lock (checkpoint/files/folder_lock.h) that no process holds. Who takes it just
/// now may find it held.
bool is_free(const std::filesystem::path& folder);

/// The iteration that the `latest` in a folder of checkpoints names.
std::optional<std::int64_t> newest_checkpoint(const std::filesystem::path& checkpoints);

/// train.out/heartbeat.json: log.heartbeat_s.
struct Heartbeat {
  double unix_s = 0;  ///< when it was written
  std::string phase;  ///< what the first rank does
  std::int64_t iteration = 0, train_iters = 0, operations = 0, world_size = 1;
};
std::optional<Heartbeat> read_heartbeat(const std::filesystem::path& path);

/// How often a supervisor has started the run of this events.jsonl again.
int restarts_told(const std::filesystem::path& events);

/// One step of metrics.jsonl. Not a number where the file has none.
struct StepPoint {
  std::int64_t iteration = 0;
  double loss = 0, grad_norm = 0, learning_rate = 0, tokens_per_s = 0, step_ms = 0, memory_bytes = 0,
         peak_memory_bytes = 0;
  bool skipped = false;
};

struct ValidationPoint {
  std::int64_t iteration = 0;
  double loss = 0;
};

/// How evenly a step used the experts of a model; NaN where the file does not say.
struct ExpertPoint {
  double imbalance = 0;     ///< the most copies of an expert, over the mean of its layer
  double dropped = 0;       ///< share of the copies
  ExpertLoads copies = {};  ///< empty without log.moe_per_layer, and where there are more than 65536
};

/// Follows a file of lines that grows, or is written again by a run that resumes.
class LineTail {
 public:
  explicit LineTail(std::filesystem::path path) : path_(std::move(path)) {}

  struct Lines {
    bool again = false;  ///< the file is another or shorter: these are its lines from the first on
    std::vector<std::string> lines;
  };
  /// The whole lines since the last call. Lines above 512 KiB are left out.
  Lines next();

 private:
  std::filesystem::path path_;
  std::uint64_t inode_ = 0, offset_ = 0;
};

/// The curves of a run. Of more than a million steps every second is dropped, as often as it takes.
class RunCurves {
 public:
  /// `out`: a file of such lines, or the run's folder, which may come later.
  explicit RunCurves(const std::filesystem::path& out);
  /// Reads on. Whether anything has changed.
  bool update();

  const std::vector<StepPoint>& steps() const { return steps_; }
  const std::vector<ValidationPoint>& validations() const { return validations_; }
  /// Of the last step that tells of experts; nothing of a dense model.
  const std::optional<ExpertPoint>& experts() const { return experts_; }

 private:
  void take(const std::string& line);

  LineTail tail_;
  std::vector<StepPoint> steps_;
  std::vector<ValidationPoint> validations_;
  std::optional<ExpertPoint> experts_;
};

}  // namespace megatron::supervise
