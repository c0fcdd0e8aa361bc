#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "megatron/supervise/run_files.h"

namespace megatron::supervise {

/// What a dashboard knows of one run. Follows its files: update() reads what is new.
class WatchedRun {
 public:
  /// `name`: as the user called it. `out`: the run's folder, which may come later.
  WatchedRun(std::string name, const std::filesystem::path& out);

  void update();

  const std::string& name() const { return name_; }
  const RunCurves& curves() const { return curves_; }
  const std::optional<Heartbeat>& heartbeat() const { return heartbeat_; }
  const std::vector<std::string>& events() const { return events_; }  ///< the last few, a line each
  std::int64_t train_iters() const;                                   ///< 0: not known
  bool has_folder() const;

 private:
  void read_recipe();

  std::string name_;
  std::filesystem::path out_;
  RunCurves curves_;
  LineTail event_lines_;
  std::vector<std::string> events_;
  std::optional<Heartbeat> heartbeat_;
  std::int64_t iters_of_recipe_ = -1;  ///< -1: it is not there yet
};

/// The runs one below the other in `height` lines of at most `width` columns: where each stands, its figures, curves in
/// block characters, its last events. `now_unix_s`: the present moment, for what a heartbeat's age says.
std::string dashboard(const std::vector<WatchedRun>& runs, int width, int height, double now_unix_s);

/// `values` in `width` columns and `height` lines of block characters, the means of equally many values in each column;
/// the highest fills its column, the lowest has an eighth of a line. What is not finite leaves gaps. Lines from the
/// top, without line breaks.
std::vector<std::string> block_chart(const std::vector<double>& values, int width, int height);

}  // namespace megatron::supervise
