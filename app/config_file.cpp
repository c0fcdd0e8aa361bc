#include "app/config_file.h"

#include <filesystem>

#include "megatron/base/error.h"

namespace megatron::app {

std::string config_file(const std::string& name, const std::string& folder, const std::string& flag) {
  namespace fs = std::filesystem;
  const fs::path program = fs::read_symlink("/proc/self/exe"), file = fs::path(folder) / (name + ".toml");
  const fs::path above = program.parent_path().parent_path();  // of build/megatron, bin/megatron, lib/megatron/…-torch
  const fs::path shared = above / "share/megatron", of_library = above.parent_path() / "share/megatron";
  for (const fs::path& path : {fs::path(name), file, above / file, shared / file, of_library / file})
    if (fs::is_regular_file(path)) return path.string();
  throw ConfigError(rule_got_fix(concat(flag, " must be a file's path or the name of one in ", folder, "/."),
                                 concat(name, ", which is neither here nor in ", (above / folder).string(), " nor in ",
                                        (shared / folder).string()),
                                 concat(flag, " FILE, a .toml as those in ", folder, "/ of the sources")));
}

}  // namespace megatron::app
