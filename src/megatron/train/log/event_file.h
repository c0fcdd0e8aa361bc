#pragma once
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace megatron::train {

/// A value of a curve. `step`: an iteration, or of tags that end in " vs samples" consumed samples.
struct Scalar {
  std::string tag;
  double value = 0;
  std::int64_t step = 0;
};

/// Where a run resumes.
struct ResumePoint {
  std::int64_t iteration = 0, samples = 0;
  std::int64_t validated_iteration = 0;  ///< whose validation is done
};

/// TensorBoard's event files of one run: records of Event messages that hold scalars as simple_value (float32). Each
/// start of the run writes a file of its own, whose name sorts behind those before.
class EventFile {
 public:
  /// Creates a file in `folder`, which is made. What the resumed run does again is taken out of this run's earlier
  /// files first, so that no reader sees a step twice: events after `resume`, and a record that a crash cut off. Files
  /// of other runs and programs are left alone. `run`: tells the run from others that write to the same folder; part of
  /// the name. Throws std::runtime_error naming the path.
  EventFile(const std::filesystem::path& folder, const std::string& run, const ResumePoint& resume);

  /// Appends scalars of one moment and hands them to the system. Neighbours with one step share a record.
  void write(const std::vector<Scalar>& scalars);

 private:
  void write_record(const std::string& event);
  void flush();

  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::filesystem::path path_;
  std::unique_ptr<std::FILE, Close> file_;
};

/// The beginning of an event file's records that belong to a run which resumes at `resume`, in bytes: up to the first
/// of a later step, or the first that is damaged. 0 where there are no values before it.
std::size_t length_until(std::string_view records, const ResumePoint& resume);

}  // namespace megatron::train
