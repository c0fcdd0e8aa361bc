#include "megatron/interchange/megatron_lm/dist/dcp_metadata.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/text/printable.h"
#include "megatron/checkpoint/files/safetensors.h"
#include "megatron/interchange/megatron_lm/pickle.h"

namespace megatron::interchange {
namespace {

using Kind = PickleNode::Kind;
using Sizes = std::vector<std::int64_t>;

constexpr std::size_t kMaxTensorDims = 8, kMaxKeyBytes = 512;
constexpr std::int64_t kMaxPlaceBytes = std::int64_t{1} << 60;

constexpr std::pair<std::string_view, const char*> kTorchDtypes[] = {
    {"torch.float32", "F32"}, {"torch.float64", "F64"}, {"torch.float16", "F16"}, {"torch.bfloat16", "BF16"},
    {"torch.int64", "I64"},   {"torch.int32", "I32"},   {"torch.int16", "I16"},   {"torch.int8", "I8"},
    {"torch.uint8", "U8"},    {"torch.bool", "BOOL"}};

class MetadataReader {
 public:
  MetadataReader(const Pickle& values, const std::string& file) : values_(values), file_(file) {}

  DcpMetadata read() {
    const PickleNode& root = state_of(values_[values_.root], "Metadata");
    read_places(dictionary(root, "storage_data"));
    const PickleNode& entries = dictionary(root, "state_dict_metadata");
    for (std::size_t i = 0; i + 1 < entries.items.size(); i += 2)
      add(name_of(values_[entries.items[i]]), values_[entries.items[i + 1]]);
    return std::move(metadata_);
  }

 private:
  using Key = std::pair<std::string, Sizes>;  // a tensor and where the chunk begins in it; an object and nothing

  [[noreturn]] void refuse(const std::string& rule, const std::string& got) const {
    throw ConfigError(rule_got_fix(concat(file_, ": ", rule), got, "copy the whole folder again"));
  }

  /// The attributes of an object of that class, or of one of that name that is derived from it.
  const PickleNode& state_of(const PickleNode& object, std::string_view name) const {
    if (object.kind != Kind::Object || !object.text.ends_with(name) || object.items.empty() ||
        values_[object.items.back()].kind != Kind::Dict)
      refuse(concat("must hold a ", name, " of torch.distributed.checkpoint."), "something else");
    return values_[object.items.back()];
  }
  const PickleNode& attribute(const PickleNode& state, std::string_view name) const {
    const PickleNode* const found = values_.find(state, name);
    if (found == nullptr) refuse(concat("every entry must have its \"", name, "\"."), "one has not");
    return *found;
  }
  const PickleNode& dictionary(const PickleNode& state, std::string_view name) const {
    const PickleNode& found = attribute(state, name);
    if (found.kind != Kind::Dict) refuse(concat("\"", name, "\" must be a dictionary."), "something else");
    return found;
  }
  std::string name_of(const PickleNode& node) const {
    if (node.kind != Kind::Text || node.text.empty() || node.text.size() > kMaxKeyBytes)
      refuse("tensors must have names.", "something else");
    return node.text;
  }
  std::uint64_t count(const PickleNode& state, std::string_view name) const {
    const PickleNode& node = attribute(state, name);
    if (node.kind != Kind::Integer || node.integer < 0 || node.integer > kMaxPlaceBytes)
      refuse(concat("\"", name, "\" must be a number of bytes."), "something else");
    return static_cast<std::uint64_t>(node.integer);
  }
  Sizes sizes(const PickleNode& node) const {
    if ((node.kind != Kind::Tuple && node.kind != Kind::List) || node.items.size() > kMaxTensorDims)
      refuse("a shape must be a list of sizes.", "something else");
    Sizes result;
    for (const std::uint32_t item : node.items) {
      if (values_[item].kind != Kind::Integer || values_[item].integer < 0 || values_[item].integer > kMaxPlaceBytes)
        refuse("a shape must be a list of sizes.", "something else");
      result.push_back(values_[item].integer);
    }
    return result;
  }

  void read_places(const PickleNode& entries) {
    for (std::size_t i = 0; i + 1 < entries.items.size(); i += 2) {
      const PickleNode& index = state_of(values_[entries.items[i]], "MetadataIndex");
      const PickleNode& info = state_of(values_[entries.items[i + 1]], "_StorageInfo");
      const PickleNode* const offset = values_.find(index, "offset");
      const Key key{name_of(attribute(index, "fqn")),
                    offset == nullptr || offset->kind == Kind::None ? Sizes() : sizes(*offset)};
      if (const PickleNode* transforms = values_.find(info, "transform_descriptors");
          transforms != nullptr && transforms->kind != Kind::None)
        refuse("tensors must be stored as they are.", concat("\"", printable(key.first), "\" transformed"));
      places_[key] = {file_name(attribute(info, "relative_path")), count(info, "offset"), count(info, "length")};
    }
  }

  /// A file of the folder itself.
  std::string file_name(const PickleNode& node) const {
    const bool plain = node.kind == Kind::Text && !node.text.empty() && node.text.size() <= 255 &&
                       node.text.front() != '.' && node.text.find('/') == std::string::npos &&
                       node.text.find('\0') == std::string::npos;
    if (!plain)
      refuse("tensors must lie in files of the folder itself.",
             node.kind == Kind::Text ? printable(node.text.substr(0, 120)) : "something else");
    return node.text;
  }

  const DcpPlace& place(const std::string& name, const Sizes& offset) const {
    const auto found = places_.find({name, offset});
    if (found == places_.end())
      refuse("every part of a tensor must have its place in a file.", concat("\"", printable(name), "\" has not"));
    return found->second;
  }

  void add(const std::string& name, const PickleNode& entry) {
    if (entry.kind == Kind::Object && entry.text.ends_with("BytesStorageMetadata")) {
      metadata_.objects[name] = place(name, {});
      return;
    }
    const PickleNode& state = state_of(entry, "TensorStorageMetadata");
    DcpTensor tensor{.dtype = dtype(attribute(state, "properties")), .shape = sizes(attribute(state, "size"))};
    const PickleNode& chunks = attribute(state, "chunks");
    if (chunks.kind != Kind::List) refuse("the parts of a tensor must be a list.", "something else");
    for (const std::uint32_t item : chunks.items) add_chunk(name, values_[item], tensor);
    check_cover(name, tensor);
    metadata_.tensors[name] = std::move(tensor);
  }

  void add_chunk(const std::string& name, const PickleNode& node, DcpTensor& tensor) const {
    const PickleNode& state = state_of(node, "ChunkStorageMetadata");
    checkpoint::Box box{sizes(attribute(state, "offsets")), sizes(attribute(state, "sizes"))};
    if (box.offset.size() != tensor.shape.size() || box.shape.size() != tensor.shape.size() ||
        !checkpoint::inside(box, tensor.shape))
      refuse("the parts of a tensor must lie in it.", concat("\"", printable(name), "\""));
    const DcpPlace& found = place(name, box.offset);
    tensor.chunks.push_back({std::move(box), found});
  }

  void check_cover(const std::string& name, const DcpTensor& tensor) const {
    std::uint64_t elements = 0;
    std::vector<checkpoint::Box> boxes;
    const std::string where = concat(file_, ": \"", printable(name), "\"");
    const std::uint64_t wanted = checkpoint::shape_elements(tensor.shape, where);
    for (const DcpChunk& chunk : tensor.chunks) {
      const std::uint64_t count = checkpoint::shape_elements(chunk.box.shape, where);
      elements += std::min(count, wanted + 1);
      if (elements > wanted) break;
      if (count > 0) boxes.push_back(chunk.box);
    }
    if (elements != wanted || checkpoint::any_overlap(boxes))
      refuse("the parts of a tensor must make up all of it once.", concat("\"", printable(name), "\""));
  }

  std::string dtype(const PickleNode& properties) const {
    const PickleNode* node = nullptr;
    if (properties.kind == Kind::Object && !properties.items.empty()) {
      const PickleNode& state = values_[properties.items.back()];
      if (state.kind == Kind::Tuple && !state.items.empty()) node = &values_[state.items.front()];
      if (state.kind == Kind::Dict) node = values_.find(state, "dtype");
    }
    if (node == nullptr || node->kind != Kind::Name) refuse("every tensor must have its dtype.", "one has not");
    for (const auto& [theirs, ours] : kTorchDtypes)
      if (node->text == theirs) return ours;
    return node->text;
  }

  const Pickle& values_;
  const std::string& file_;
  DcpMetadata metadata_;
  std::map<Key, DcpPlace> places_;
};

}  // namespace

DcpMetadata read_dcp_metadata(std::span<const std::byte> bytes, const std::string& file) {
  const Pickle values = read_pickle(bytes, file);
  return MetadataReader(values, file).read();
}

}  // namespace megatron::interchange
