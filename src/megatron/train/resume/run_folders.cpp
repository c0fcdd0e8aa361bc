#include "megatron/train/resume/run_folders.h"

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/train/inputs.h"

namespace megatron::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFix = "name another: --train.out, --checkpoint.save";

}  // namespace

RunFolders::RunFolders(const config::RunConfig& config) {
  std::vector<fs::path> folders;
  for (const fs::path& named : {fs::path(config.train.out), save_folder(config)}) {
    make_folder(named, kFix);
    folders.push_back(fs::canonical(named));
  }
  if (folders[0] == folders[1]) folders.pop_back();
  for (const fs::path& folder : folders) locks_.emplace_back(folder, kFix);
  if (config.log.tensorboard && !config.log.tensorboard_dir.empty())
    make_folder(config.log.tensorboard_dir, "name another: --tensorboard-dir");
  if (!config.log.wandb_project.empty() && !config.log.wandb_save_dir.empty())
    make_folder(config.log.wandb_save_dir, "name another: --wandb-save-dir");
  if (const fs::path trace = config.log.trace; !trace.empty()) {
    constexpr const char* kTraceFix = "name another: --log.trace";
    make_folder(trace.parent_path(), kTraceFix);
    if (fs::is_directory(trace))
      throw ConfigError(rule_got_fix("log.trace must name a file.", trace.string() + ", a folder", kTraceFix));
  }
}

}  // namespace megatron::train
