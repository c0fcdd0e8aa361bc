#include "megatron/interchange/megatron_lm/torch_file.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/text/printable.h"
#include "megatron/checkpoint/files/safetensors.h"

namespace megatron::interchange {
namespace {

constexpr std::uint64_t kMaxPickleBytes = std::uint64_t{1} << 26;

}  // namespace

TorchFile::TorchFile(const std::filesystem::path& path)
    : TorchFile(std::make_shared<const MappedFile>(path), path.string()) {}

TorchFile::TorchFile(std::shared_ptr<const MappedFile> file, std::string name)
    : TorchFile(file, file->bytes(), std::move(name)) {}

TorchFile::TorchFile(std::shared_ptr<const MappedFile> file, std::uint64_t offset, std::uint64_t size)
    : TorchFile(file, file->range(offset, size, 1, "an archive of torch.save"),
                concat(file->path().string(), " at byte ", offset)) {}

TorchFile::TorchFile(std::shared_ptr<const MappedFile> file, std::span<const std::byte> bytes, std::string text)
    : file_(std::move(file)), bytes_(bytes), name_(std::move(text)), entries_(read_zip(bytes_, name_)) {
  const auto pickle = std::find_if(entries_.begin(), entries_.end(), [](const auto& entry) {
    const auto slash = entry.first.find('/');
    return slash != std::string::npos && entry.first.substr(slash) == "/data.pkl";
  });
  if (pickle == entries_.end())
    throw ConfigError(rule_got_fix(concat(name(), ": must be a file of torch.save."), "an archive without data.pkl"));
  folder_ = pickle->first.substr(0, pickle->first.find('/') + 1);
  if (const auto order = entries_.find(folder_ + "byteorder"); order != entries_.end()) {
    const auto bytes = bytes_.subspan(order->second.begin, order->second.size);
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (text != "little")
      throw ConfigError(rule_got_fix(concat(name(), ": must be little-endian."), "another byte order"));
  }
  const auto [begin, size] = pickle->second;
  if (size > kMaxPickleBytes)
    throw ConfigError(rule_got_fix(concat(name(), ": data.pkl must have at most ", kMaxPickleBytes, " bytes."),
                                   concat(size, " bytes")));
  pickle_ = read_pickle(bytes_.subspan(begin, size), name() + ": data.pkl");
}

StoredTensor TorchFile::tensor(const PickleNode& node, const std::string& what) const {
  const PickleNode& storage = pickle_[node.items.at(0)];
  const auto entry = entries_.find(folder_ + "data/" + storage.text);
  const std::uint64_t width = checkpoint::dtype_bytes(storage.dtype);
  if (entry == entries_.end() || static_cast<std::uint64_t>(storage.integer) > entry->second.size / width)
    throw ConfigError(rule_got_fix(
        concat(name(), ": must hold the ", storage.integer, " elements of the storage of \"", printable(what), "\"."),
        entry == entries_.end() ? "no such file in the archive" : concat(entry->second.size, " bytes")));
  const std::size_t dims = node.extents.size() / 2;
  const auto begin = node.extents.begin();
  StoredTensor stored{.bytes = {},
                      .dtype = storage.dtype,
                      .shape = {begin, begin + static_cast<std::ptrdiff_t>(dims)},
                      .strides = {begin + static_cast<std::ptrdiff_t>(dims), node.extents.end()}};
  // Of an empty tensor the first element need not be there.
  if (checkpoint::shape_elements(stored.shape, what) > 0)
    stored.bytes = bytes_.subspan(entry->second.begin, entry->second.size)
                       .subspan(static_cast<std::uint64_t>(node.integer) * width);
  return stored;
}

}  // namespace megatron::interchange
