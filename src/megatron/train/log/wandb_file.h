#pragma once
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/config/run_config.h"
#include "megatron/train/log/event_file.h"

namespace megatron::train {

/// An offline run of Weights & Biases, which `wandb sync FOLDER` uploads: FOLDER is
/// log.wandb_save_dir/wandb/offline-run-TIME-ID, with the transaction log run-ID.wandb. A row of its history is what
/// was written for one iteration. A resumed run continues its file, without the rows that it does again.
class WandbFile {
 public:
  /// Throws std::runtime_error naming the path.
  WandbFile(const config::RunConfig& config, const ResumePoint& resume);
  /// Writes the last row, and that the run has ended unless an exception ends it.
  ~WandbFile();
  WandbFile(const WandbFile&) = delete;
  WandbFile& operator=(const WandbFile&) = delete;

  /// Adds the scalars to the row of `iteration`, which is in the file once the next one begins. Those against samples
  /// become one column, "samples vs steps".
  void write(const std::vector<Scalar>& scalars, std::int64_t iteration, std::int64_t samples);

 private:
  void start(const config::RunConfig& config, const std::filesystem::path& folder, const std::string& id);
  void write_row();
  void write_end();
  void write_record(std::uint32_t field, const std::string& message);

  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::filesystem::path path_;
  std::unique_ptr<std::FILE, Close> file_;
  std::uint64_t offset_ = 0, records_ = 0;
  int exceptions_;
  std::int64_t row_ = 0;  ///< iteration of `values_`; 0: there is none
  std::map<std::string, std::string> values_, last_values_;
};

/// The part of a transaction log that a run which resumes at `iteration` keeps.
struct KeptLog {
  std::uint64_t bytes = 0;
  std::uint64_t records = 0;
};
KeptLog kept_log(std::string_view file, std::int64_t iteration);

}  // namespace megatron::train
