#pragma once
#include <filesystem>
#include <memory>
#include <string>

namespace megatron {

/// A folder that appears under its name whole or not at all. Until commit() it has another, beside the final one, which
/// only a killed program leaves behind: the next AtomicFolder of the name removes it. Only one at a time makes a folder
/// of a name, by a lock on a file beside it that is there meanwhile; where there are no locks, several may, and nothing
/// that is left is removed.
class AtomicFolder {
 public:
  /// Throws ConfigError where `path` is there and not an empty folder, another process makes it at the moment, or the
  /// one above it may not be written.
  explicit AtomicFolder(const std::filesystem::path& path);
  ~AtomicFolder();
  AtomicFolder(const AtomicFolder&) = delete;
  AtomicFolder& operator=(const AtomicFolder&) = delete;

  /// Throws as the constructor does where `path` cannot become the folder; looks alone.
  static void check(const std::filesystem::path& path);

  /// Where to write.
  const std::filesystem::path& temporary_path() const { return temporary_; }

  /// The folder and its name are on the disk when this returns. Throws std::runtime_error where somebody has taken the
  /// name meanwhile.
  void commit();

 private:
  /// The name's lock, held until destroyed: the file is removed then.
  class Lock {
   public:
    /// `path`: of the file. Throws ConfigError where another process holds it.
    Lock(std::filesystem::path path, const std::filesystem::path& whose);
    ~Lock();
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;
    /// The name that who held it before has told to remember, and has not taken back by its end; "": none, or the file
    /// system has no locks.
    std::string left() const;
    /// Tells the next one of the folder that is left if this process is killed.
    void remember(const std::string& name) const;

   private:
    std::filesystem::path path_;
    int descriptor_ = -1;
    bool held_ = false;
  };

  std::filesystem::path final_, temporary_;
  std::unique_ptr<Lock> lock_;
};

}  // namespace megatron
