#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace megatron::config {

/// What follows a flag of Megatron-LM on its command line.
enum class FlagKind : std::uint8_t {
  Switch,      ///< nothing
  Int,         ///< as Python's int() reads it
  Float,       ///< as Python's float() reads it
  String,      ///< any word, or one of the choices
  List,        ///< one word or more, up to the next flag
  ListOrNone,  ///< none, one or more
  Three        ///< three integers
};

/// What becomes of a flag here.
enum class FlagUse : std::uint8_t {
  Maps,     ///< stands for options of RunConfig
  Ignored,  ///< changes no result, or has no counterpart: accepted
  Missing,  ///< asks for a feature that is not here
  Refused,  ///< asks for what no run should do
  Removed   ///< Megatron-LM refuses it too
};

/// One option of Megatron-LM's parser.
struct MegatronFlag {
  std::vector<std::string> names;  ///< without dashes, as they are declared there: `_` and `-` differ
  FlagKind kind;
  std::string default_value;         ///< "": none, or off
  std::vector<std::string> choices;  ///< empty: any value
  FlagUse use;
  /// Maps: the paths of options, separated by spaces. Ignored: why. Missing: the feature. Refused: what it does.
  /// Removed: what to write instead.
  std::string text;
  std::string harmless;  ///< of Missing: a value, besides the default, that asks for nothing

  std::string flag() const { return "--" + names.front(); }
};

/// All of them, from the tables flags/*.def, in the order of docs/from_megatron_lm.md.
const std::vector<MegatronFlag>& megatron_flags();

/// The flag of a name without dashes, or null.
const MegatronFlag* megatron_flag(std::string_view name);

/// A value of a flag that a run must be given, which the fix of an error names; "" of all others.
std::string_view needed_example(std::string_view name);

/// The paths of the options that a flag of FlagUse::Maps stands for.
std::vector<std::string> mapped_paths(const MegatronFlag& flag);

}  // namespace megatron::config
