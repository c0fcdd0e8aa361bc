#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace megatron::config {

/// What an option of Megatron-LM stands for under its name in Python (`tp_comm_bulk_wgrad`).
struct PythonName {
  enum class Use : std::uint8_t { On, Off, Value, Ignored, Unset };
  Use use;
  std::string text;  ///< On, Off, Value: the flag; Ignored: why; Unset: the value that asks for nothing, or ""
};

/// The flag of that name, or with `no-` or `disable-` before it: `tp_comm_bulk_wgrad` is set by
/// --no-tp-comm-bulk-wgrad.
std::optional<PythonName> flag_of_python_name(const std::string& name);

/// What a YAML file means by it, by the table flags/yaml_keys.def, whose names are no flags' or mean something else.
std::optional<PythonName> yaml_key(const std::string& name);

/// The names in that table.
std::vector<std::string> yaml_keys();

}  // namespace megatron::config
