#include "megatron/config/megatron/python_names.h"

#include <algorithm>
#include <map>

#include "megatron/config/megatron/flag_table.h"

namespace megatron::config {
namespace {

using Use = PythonName::Use;

const std::map<std::string, PythonName>& rows() {
  static const std::map<std::string, PythonName> all = {
#define KEY(name, use, text) {name, {Use::use, text}},
#include "megatron/config/megatron/flags/yaml_keys.def"
#undef KEY
  };
  return all;
}

}  // namespace

std::optional<PythonName> flag_of_python_name(const std::string& name) {
  std::string dashes = name;
  std::ranges::replace(dashes, '_', '-');
  for (const std::string& flag : {name, dashes})
    if (const MegatronFlag* const found = megatron_flag(flag))
      return PythonName{found->kind == FlagKind::Switch ? Use::On : Use::Value, flag};
  for (const char* const off : {"no-", "disable-"})
    if (const MegatronFlag* const found = megatron_flag(off + dashes);
        found != nullptr && found->kind == FlagKind::Switch)
      return PythonName{Use::Off, off + dashes};
  return std::nullopt;
}

std::optional<PythonName> yaml_key(const std::string& name) {
  const auto row = rows().find(name);
  return row == rows().end() ? flag_of_python_name(name) : row->second;
}

std::vector<std::string> yaml_keys() {
  std::vector<std::string> names;
  for (const auto& [name, key] : rows()) names.push_back(name);
  return names;
}

}  // namespace megatron::config
