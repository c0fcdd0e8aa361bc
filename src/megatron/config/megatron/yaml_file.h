#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace megatron::config {

/// One value of a YAML file, as YAML 1.1 reads it (`yes` is true). Numbers stay text.
struct YamlScalar {
  enum class Kind : std::uint8_t { Null, Bool, Text };
  Kind kind = Kind::Null;
  bool truth = false;  ///< of a Bool
  std::string text;    ///< as it is written, without quotes
};

/// A key and its value: one scalar, or a list of scalars.
struct YamlEntry {
  std::string section;  ///< the key of the mapping that it stands in; "" outside of any
  std::string key;
  bool is_list = false;
  std::vector<YamlScalar> values;
  std::size_t line = 0;  ///< from 1

  std::string path() const { return section.empty() ? key : section + "." + key; }
};

/// The keys of a YAML file of options in their order: one mapping, whose values are scalars, lists of scalars, or
/// mappings of these. Throws ConfigError, which names the file `name` and the line, where it is anything else: no YAML,
/// deeper nesting, anchors, aliases, tags, a second document, a key given twice.
std::vector<YamlEntry> read_yaml(std::string_view text, const std::string& name);

}  // namespace megatron::config
