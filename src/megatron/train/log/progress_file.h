#pragma once
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <optional>
#include <string>

namespace megatron::train {

/// progress.txt in the folder of checkpoints, with Megatron-LM's lines: when a job began, and what was done at each
/// save, also over all jobs with as many ranks. Its tools read it on. Written by the first rank alone.
class ProgressFile {
 public:
  struct Job {
    std::string id;  ///< Slurm's number of it, or ""
    int ranks = 1;
    double flops = 0;  ///< that the checkpoint which the job begins with took
  };
  /// `folder` is made where it is not there. Appends that the job starts. Throws std::runtime_error where the file
  /// cannot be written.
  ProgressFile(const std::filesystem::path& folder, const Job& job);

  /// A checkpoint of `iteration` was written, or is being written, and saved() will say when it is.
  struct Save {
    std::int64_t iteration = 0;
    double flops = 0, tokens = 0;  ///< since the run's first sample
    double seconds = 0;            ///< since the job began
    bool is_under_way = false;
  };
  void save(const Save& save);
  /// The last one that was under way is there.
  void saved();

 private:
  void append(const std::string& text, std::time_t now);

  std::filesystem::path path_;
  Job job_;
  std::time_t first_start_ = 0;  ///< of the first job in a row with as many ranks
  double first_flops_ = 0;       ///< at that time
  std::optional<std::int64_t> under_way_;
};

}  // namespace megatron::train
