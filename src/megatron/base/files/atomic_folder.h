#pragma once
#include <filesystem>

namespace megatron {

/// A folder that appears under its name whole or not at all. Until commit() it has another, beside the final one, which
/// only a killed program leaves behind.
class AtomicFolder {
 public:
  /// Throws ConfigError where `path` is there and not an empty folder, or the one above it may not be written.
  explicit AtomicFolder(const std::filesystem::path& path);
  ~AtomicFolder();
  AtomicFolder(const AtomicFolder&) = delete;
  AtomicFolder& operator=(const AtomicFolder&) = delete;

  /// Throws as the constructor does where `path` cannot become the folder; looks alone.
  static void check(const std::filesystem::path& path);

  /// Where to write.
  const std::filesystem::path& temporary_path() const { return temporary_; }

  /// The folder and its name are on the disk when this returns.
  void commit();

 private:
  std::filesystem::path final_, temporary_;
};

}  // namespace megatron
