#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// A reader of Python's pickles as torch.save writes them. It builds data and calls nothing: a name of Python that
// stands in the file only says what kind of data its arguments are. No torch here.
namespace megatron::interchange {

/// One value of a pickle. Children are indices into Pickle::nodes: values may be shared, and may contain themselves.
struct PickleNode {
  enum class Kind : std::uint8_t {
    None,
    Bool,     ///< integer
    Integer,  ///< integer
    Float,    ///< number
    Text,     ///< text: str or bytes
    Tuple,    ///< items
    List,     ///< items; also a set
    Dict,     ///< items: key, value, key, value, …; also OrderedDict and argparse.Namespace
    Name,     ///< text: a name of Python that is allowed, "torch.float32"
    Object,   ///< text: its class; items: the arguments. Data without a meaning here (a random generator's state)
    Storage,  ///< text: key of its file; dtype; integer: elements
    Tensor    ///< items: {its storage}; integer: first element; extents
  };
  Kind kind = Kind::None;
  std::int64_t integer = 0;
  double number = 0;
  const char* dtype = "";  ///< safetensors' name
  std::string text;
  std::vector<std::uint32_t> items;
  std::vector<std::int64_t> extents;  ///< a tensor's shape, then its strides in elements
};

struct Pickle {
  std::vector<PickleNode> nodes;
  std::uint32_t root = 0;

  const PickleNode& operator[](std::uint32_t index) const { return nodes[index]; }
  /// The value under a text key of a dictionary; nullptr where there is none or `dict` is no dictionary.
  const PickleNode* find(const PickleNode& dict, std::string_view key) const;
};

/// Reads a pickle of protocol 2 to 5. Refuses every opcode and every global that torch.save and Megatron-LM do not
/// write, by name. A tensor's elements are checked to lie in its storage's count, and to be no more than it has; that
/// the storage is as long is for the caller to check. Memory stays proportional to the pickle's size. Throws
/// ConfigError naming `file`, the byte offset, and the opcode or global.
Pickle read_pickle(std::span<const std::byte> bytes, const std::string& file);

}  // namespace megatron::interchange
