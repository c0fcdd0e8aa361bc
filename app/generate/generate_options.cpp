#include "app/generate/generate_options.h"

#include "megatron/base/error.h"

namespace megatron::app {
namespace {

constexpr const char* kUsage =
    "megatron generate --load DIR --prompt S… [OPTION]…\n\n"
    "Continues each prompt with the model in DIR: a run's folder, its checkpoints or one of them, or a Hugging Face\n"
    "folder. Special tokens written in a prompt are recognised. An empty prompt begins a new text. The answer to a\n"
    "single prompt is printed token by token.\n\n"
    "A T5 reads each prompt and prints only its answer: greedy, by beam search, or sampled with --temperature.";

}  // namespace

void need_prompts(const std::vector<std::string>& prompts) {
  if (prompts.empty())
    throw ConfigError(rule_got_fix("generate: a prompt must be given.", "none", "--prompt \"Once upon\""));
}

generate::SamplingOptions sampling_of(const GenerateFlags& flags, double usual_temperature) {
  return {.temperature = flags.temperature == kUsualTemperature ? usual_temperature : flags.temperature,
          .top_k = flags.top_k,
          .top_p = flags.top_p,
          .min_p = flags.min_p};
}

GenerateFlags generate_flags(const Args& args) {
  GenerateFlags flags;
  const auto rest = config::parse_command_line(flags, args, kUsage);
  if (!rest.empty())
    throw ConfigError(rule_got_fix("generate takes options alone.", rest[0], concat("--prompt \"", rest[0], "\"")));
  generate::check(sampling_of(flags, 1));
  if (flags.prompt_file.empty()) need_prompts(flags.prompt);
  run::check_model_flags(flags, "generate");
  return flags;
}

}  // namespace megatron::app
