#pragma once
#include <map>
#include <string>

#include "megatron/config/options.h"
#include "megatron/config/run_config.h"

namespace megatron::config {

/// Whether anything reads `option`, one of `fields`, with the values that the others have.
bool is_read(const Field& option, const Fields& fields);

/// The options that are given (RecipeCommand) but that nothing reads with the values that others of `config` have, as
/// one line: "note: --adam-beta1 has no effect with --optimizer sgd"; "" where there are none. Harmless, so no error:
/// scripts carry such flags.
std::string unread_note(RunConfig config, const std::map<std::string, std::string>& given);

}  // namespace megatron::config
