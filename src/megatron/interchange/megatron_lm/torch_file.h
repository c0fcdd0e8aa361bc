#pragma once
#include <filesystem>
#include <map>
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

  const Pickle& values() const { return pickle_; }
  const PickleNode& root() const { return pickle_[pickle_.root]; }
  std::string name() const { return file_.path().string(); }
  /// The shape and bytes of a value of kind Tensor. Throws ConfigError, naming `what`, where the file does not hold all
  /// of its storage.
  StoredTensor tensor(const PickleNode& node, const std::string& what) const;

 private:
  MappedFile file_;
  std::map<std::string, ZipEntry> entries_;
  std::string folder_;  ///< the archive's only outer folder, with '/'
  Pickle pickle_;
};

}  // namespace megatron::interchange
