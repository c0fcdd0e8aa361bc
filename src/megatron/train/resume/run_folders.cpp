#include "megatron/train/resume/run_folders.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <optional>
#include <system_error>
#include <thread>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/base/ranks/run_key.h"
#include "megatron/comm/agreement.h"
#include "megatron/train/inputs.h"

namespace megatron::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFix = "name another: --train.out, --checkpoint.save";

fs::path whole(const fs::path& folder) { return fs::absolute(folder.empty() ? "." : folder).lexically_normal(); }

bool is_missing(const fs::path& path) {
  std::error_code error;
  return !path.empty() && fs::symlink_status(path, error).type() == fs::file_type::not_found;
}

/// What a start makes: removed again, as far as it is empty, unless it is kept.
class MadePlaces {
 public:
  MadePlaces() = default;
  ~MadePlaces() {
    std::error_code ignored;
    for (auto made = made_.rbegin(); made != made_.rend(); ++made) fs::remove(*made, ignored);
  }
  MadePlaces(const MadePlaces&) = delete;
  MadePlaces& operator=(const MadePlaces&) = delete;

  void make(const fs::path& folder, const char* fix) {
    std::vector<fs::path> missing;
    for (fs::path path = whole(folder); is_missing(path); path = path.parent_path()) missing.push_back(path);
    made_.insert(made_.end(), missing.rbegin(), missing.rend());
    make_folder(folder, fix);
  }
  checkpoint::FolderLock lock(const fs::path& folder, const char* fix) {
    const fs::path file = folder / ".lock";
    const bool makes = is_missing(file);
    checkpoint::FolderLock lock(folder, fix);
    if (makes) made_.push_back(file);
    return lock;
  }
  void keep() { made_.clear(); }

 private:
  std::vector<fs::path> made_;
};

/// What would stop the first save, found before the first step.
void check_latest(const fs::path& checkpoints) {
  const fs::path latest = checkpoints / "latest";
  std::error_code error;
  if (fs::exists(latest, error) && !fs::is_regular_file(latest, error))
    throw ConfigError(
        rule_got_fix("latest in a folder of checkpoints must be a file.",
                     latest.string() + (fs::is_directory(latest, error) ? ", a folder" : ", which is none"),
                     concat("rm -r ", latest.string(), "; or ", kFix)));
}

}  // namespace

void check_metrics_file(const fs::path& path) {
  std::error_code error;  // a folder that may not be looked into is refused where it is to be written
  if (!fs::exists(path, error) || fs::is_regular_file(path, error)) return;
  throw ConfigError(
      rule_got_fix("A run's own metrics.jsonl must be a regular file.",
                   concat(path.string(), fs::is_directory(path, error) ? ", a folder" : ", which is none"),
                   "remove or rename it, or name another --train.out"));
}

namespace {

/// The locks of a run's folders, which are made where they are missing.
void take_folders(const config::RunConfig& config, MadePlaces& places, std::vector<checkpoint::FolderLock>& locks) {
  check_metrics_file(fs::path(config.train.out) / "metrics.jsonl");
  std::vector<fs::path> folders = {config.train.out, save_folder(config)};
  for (const fs::path& named : folders) places.make(named, kFix);
  if (fs::equivalent(folders[0], folders[1])) folders.pop_back();
  for (const fs::path& folder : folders) locks.push_back(places.lock(folder, kFix));
  check_latest(save_folder(config));
  if (config.log.tensorboard && !config.log.tensorboard_dir.empty())
    places.make(config.log.tensorboard_dir, "name another: --tensorboard-dir");
  if (!config.log.wandb_project.empty() && !config.log.wandb_save_dir.empty())
    places.make(config.log.wandb_save_dir, "name another: --wandb-save-dir");
  if (const fs::path trace = config.log.trace; !trace.empty()) {
    constexpr const char* kTraceFix = "name another: --log.trace";
    places.make(trace.parent_path(), kTraceFix);
    if (fs::is_directory(trace))
      throw ConfigError(rule_got_fix("log.trace must name a file.", trace.string() + ", a folder", kTraceFix));
  }
}

}  // namespace

void try_run_folders(const config::RunConfig& config) {
  std::vector<checkpoint::FolderLock> locks;
  MadePlaces places;  // removed while they are held
  take_folders(config, places, locks);
}

void try_folder(const fs::path& folder, const char* fix, const std::function<void()>& look) {
  std::optional<checkpoint::FolderLock> lock;
  MadePlaces places;  // removed while it is held
  places.make(folder, fix);
  lock.emplace(places.lock(folder, fix));
  look();
}

void try_to_save(const config::RunConfig& config, int rank) {
  if (config.checkpoint.save_interval < 0) return;
  const fs::path wanted = whole(save_folder(config));
  fs::path folder = wanted;
  while (is_missing(folder)) folder = folder.parent_path();
  std::error_code error;
  if (!fs::is_directory(folder, error)) return;  // it is in the way of rank 0, which makes the folder
  try {
    AtomicFile file(folder / concat(".trial-rank_", rank));
    file.write("what a disk that is full does not take");
    file.flush();
  } catch (const ConfigError& refused) {  // it ends with its fix, and names no option
    throw ConfigError(concat(refused.what(), "; the run saves in ", wanted.string(), ": ", kFix));
  }
}

namespace {

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "this host";
}

/// A file for other ranks to find, gone with this object.
class Sign {
 public:
  explicit Sign(fs::path path) : path_(std::move(path)) { write_file(path_, ""); }
  ~Sign() {
    std::error_code ignored;
    fs::remove(path_, ignored);
  }
  Sign(const Sign&) = delete;
  Sign& operator=(const Sign&) = delete;

 private:
  fs::path path_;
};

/// Whether a file is there or comes soon: a network's file system may show it later than it was written.
bool appears(const fs::path& path) {
  constexpr std::chrono::seconds kPatience{5};
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  std::error_code error;
  while (!fs::exists(path, error)) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return true;
}

}  // namespace

void require_shared_folder(const config::RunConfig& config, const comm::Group& world) {
  if (world.size() == 1 || config.checkpoint.save_interval < 0) return;
  const fs::path wanted = whole(save_folder(config));
  std::optional<Sign> sign;
  std::string said;  // how many steps above the folder, and the name; then rank 0's host
  if (world.rank() == 0) {
    int above = 0;
    fs::path place = wanted;
    for (; is_missing(place); ++above) place = place.parent_path();
    const std::string name = ".seen-by-all-" + random_secret().substr(0, 16);
    try {
      sign.emplace(place / name);
      said = concat(above, " ", name, "\n", host_name());
    } catch (const std::exception&) {  // RunFolders finds the same, and has the words for it
    }
  }
  said = comm::gather_texts(world, said).at(0);
  if (said.empty()) return;
  comm::run_together(world, [&] {
    int above = 0;
    const std::size_t space = said.find(' '), line = said.find('\n');
    std::from_chars(said.data(), said.data() + space, above);
    fs::path place = wanted;
    for (; above > 0; --above) place = place.parent_path();
    if (world.rank() == 0 || appears(place / said.substr(space + 1, line - space - 1))) return;
    throw ConfigError(
        rule_got_fix("All ranks must see the folder in which the run saves: each writes a part of a checkpoint there.",
                     concat(wanted.string(), " on ", host_name(), " is not that of rank 0, on ", said.substr(line + 1)),
                     concat("name a folder of a disk that all hosts share: ",
                            config.checkpoint.save.empty() ? "--train.out" : "--checkpoint.save")));
  });
}

RunFolders::RunFolders(const config::RunConfig& config) {
  MadePlaces places;
  take_folders(config, places, locks_);
  places.keep();
}

void RunFolders::require_held() {
  const std::scoped_lock lock(mutex_);
  for (checkpoint::FolderLock& folder : locks_) folder.require_held();
}

bool RunFolders::are_held() {
  const std::scoped_lock lock(mutex_);
  return std::ranges::all_of(locks_, [](checkpoint::FolderLock& folder) { return folder.is_held(); });
}

}  // namespace megatron::train
