#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "megatron/config/megatron/flag_table.h"

// Megatron-LM's flags where the words follow a recipe (`megatron train RECIPE`). Its own programs, with its
// defaults, are in megatron/translate.h.
namespace megatron::config {

/// What to write instead of a flag that is no option here.
struct MegatronAdvice {
  const char* name;
  const char* fix;  ///< begins with "leave it out", or with what to write
};

/// Those that an option of another name or unit answers to, in the order of docs/from_megatron_lm.md.
std::span<const MegatronAdvice> megatron_advice();

/// Of a flag that megatron_advice() or the table of flags knows, by its normalized name without dashes; nothing for
/// one that is an option here and for an unknown one. A name that is merely near one of our options would otherwise be
/// answered with that option, which means something else.
struct MegatronAnswer {
  FlagKind kind;
  std::string fix;
};
std::optional<MegatronAnswer> megatron_answer(const std::string& name);

/// A flag of Megatron-LM without a value that stands for values of options here, e.g. --bf16.
struct MegatronSwitch {
  struct Setting {
    const char *option, *value;
  };
  const char* name;
  std::vector<Setting> settings;
  const char* excludes = nullptr;  ///< another switch
};

/// All of them, in the order of docs/from_megatron_lm.md.
const std::vector<MegatronSwitch>& megatron_switches();

/// The entry for a normalized name without dashes, or null.
const MegatronSwitch* megatron_switch(const std::string& name);

}  // namespace megatron::config
