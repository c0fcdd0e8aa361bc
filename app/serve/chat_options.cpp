#include "app/serve/chat_options.h"

#include "megatron/base/error.h"
#include "megatron/generate/sampling_options.h"

namespace megatron::app {
namespace {

constexpr const char* kUsage =
    "megatron chat MODEL [OPTION]…\n\n"
    "A conversation with a chat model: a line is a message, and what was said before stays in the prompt. MODEL: a\n"
    "folder as generate takes it, with a chat template. Lines that begin with / are commands: /clear forgets the\n"
    "conversation, /system TEXT sets the system message and clears, /undo forgets the last turn, /quit ends, as the "
    "end\n"
    "of input does. Ctrl-C ends an answer. The exit code is 1 where a message from a pipe was refused.";

}  // namespace

ChatFlags chat_flags(const Args& args) {
  ChatFlags flags;
  recipe::take_model(flags, config::parse_command_line(flags, args, kUsage), "chat");
  generate::check({.temperature = flags.temperature, .top_k = flags.top_k, .top_p = flags.top_p, .min_p = flags.min_p});
  if (!(flags.repetition_penalty >= 0.01 && flags.repetition_penalty <= 100))
    throw ConfigError(rule_got_fix("chat: --repetition-penalty must be 0.01 to 100.", concat(flags.repetition_penalty),
                                   "--repetition-penalty 1 (the default)"));
  if (flags.max_new_tokens < 1)
    throw ConfigError(rule_got_fix("chat: --max-new-tokens must be 1 or above.", concat(flags.max_new_tokens),
                                   "--max-new-tokens 512"));
  recipe::check_model_flags(flags, "chat");
  return flags;
}

}  // namespace megatron::app
