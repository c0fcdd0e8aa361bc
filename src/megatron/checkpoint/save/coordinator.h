#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "megatron/base/machine/out_of_memory.h"
#include "megatron/checkpoint/files/folder.h"
#include "megatron/checkpoint/slices/save_plan.h"

// Rank 0's part of a save, and the messages of the others to it. No torch here.
namespace megatron::checkpoint {

/// A message: what came of a piece of work, as JSON, or why it failed.
std::string done_message(const std::string& value);
std::string failed_message(const std::string& reason);

/// Does `work`, which returns a text; never throws.
template <class Work>
std::string attempt(Work work) {
  try {
    return done_message(work());
  } catch (const std::exception& e) {
    return failed_message(message_of(e));
  }
}

/// What the work of a message came to. Where it failed throws std::runtime_error, which begins with `who`.
std::string outcome(const std::string& message, const std::string& who);

/// Decides who writes what, and publishes what was written.
class Coordinator {
 public:
  /// `require_folder`: Saver::Options.
  Coordinator(std::filesystem::path folder, RetentionPolicy keep, std::function<void()> require_folder = {})
      : folder_(std::move(folder)), keep_(keep), require_folder_(std::move(require_folder)) {}

  void require_folder() const {
    if (require_folder_) require_folder_();
  }

  /// From what every rank holds: what each is to write. Removes leftovers of killed programs.
  std::vector<std::string> plan(const std::vector<std::string>& reports);
  /// The save that begins now.
  void begin(std::int64_t iteration, std::map<std::string, std::string> metadata);
  /// From what every rank has written: the text of manifest.json. Throws std::runtime_error where a rank has failed.
  std::string manifest(const std::vector<std::string>& reports) const;
  /// From what every rank has written: publishes it, or removes it. A message.
  std::string finish(const std::vector<std::string>& reports) const;

 private:
  void remove_superfluous() const;

  std::filesystem::path folder_;
  RetentionPolicy keep_;
  std::function<void()> require_folder_;
  std::int64_t iteration_ = 0;
  std::map<std::string, std::string> metadata_;
  std::vector<std::vector<HeldSlice>> held_;
  std::vector<std::vector<std::size_t>> writes_;
};

}  // namespace megatron::checkpoint
