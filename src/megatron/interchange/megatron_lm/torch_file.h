#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "megatron/base/files/file.h"
#include "megatron/interchange/megatron_lm/pickle.h"
#include "megatron/interchange/megatron_lm/zip.h"
#include "megatron/interchange/stored_tensor.h"

namespace megatron::interchange {

/// A file that torch.save wrote (torch 1.6 or later), mapped: its values, and where its tensors lie. Nothing in it is
/// executed; see pickle.h.
class TorchFile {
 public:
  /// Throws ConfigError naming the file for anything that is not such a file, whole and harmless.
  explicit TorchFile(const std::filesystem::path& path);
  /// One that is `size` bytes of another file from `offset` on.
  TorchFile(std::shared_ptr<const MappedFile> file, std::uint64_t offset, std::uint64_t size);

  const Pickle& values() const { return pickle_; }
  const PickleNode& root() const { return pickle_[pickle_.root]; }
  const std::string& name() const { return name_; }
  /// The shape and bytes of a value of kind Tensor. Throws ConfigError, naming `what`, where the file does not hold all
  /// of its storage.
  StoredTensor tensor(const PickleNode& node, const std::string& what) const;

 private:
  TorchFile(std::shared_ptr<const MappedFile> file, std::string name);
  TorchFile(std::shared_ptr<const MappedFile> file, std::span<const std::byte> bytes, std::string name);

  std::shared_ptr<const MappedFile> file_;
  std::span<const std::byte> bytes_;  ///< the archive
  std::string name_;
  std::map<std::string, ZipEntry> entries_;
  std::string folder_;  ///< the archive's only outer folder, with '/'
  Pickle pickle_;
};

}  // namespace megatron::interchange
