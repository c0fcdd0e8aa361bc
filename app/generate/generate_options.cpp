#include "app/generate/generate_options.h"

#include <filesystem>
#include <initializer_list>
#include <system_error>
#include <utility>

#include "megatron/base/error.h"

namespace megatron::app {
namespace {

constexpr const char* kUsage =
    "megatron generate --load DIR --prompt S… [OPTION]…\n\n"
    "Continues each prompt with the model in DIR: a run's folder, its checkpoints or one of them, or a Hugging Face\n"
    "folder. Special tokens written in a prompt are recognised. An empty prompt begins a new text. The answer to a\n"
    "single prompt is printed token by token.\n\n"
    "A T5 reads each prompt and prints only its answer: greedy, by beam search, or sampled with --temperature.";

/// Throws ConfigError for the first option of `given` that is not as it is where nothing is said.
void need_defaults(std::initializer_list<std::pair<const char*, bool>> given, const char* whose) {
  for (const auto& [option, changed] : given)
    if (changed)
      throw ConfigError(rule_got_fix(concat("generate: --", option, " is an option of ", whose, " alone."),
                                     concat("--", option), concat("leave --", option, " out")));
}

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

void check_kind(const GenerateFlags& flags, bool encoder_decoder) {
  const GenerateFlags none;
  const auto changed = [&](auto member) { return flags.*member != none.*member; };
  using F = GenerateFlags;
  if (encoder_decoder) {
    need_defaults({{"chat", changed(&F::chat)},
                   {"system", changed(&F::system)},
                   {"add-special-tokens", changed(&F::add_special_tokens)},
                   {"logprobs", changed(&F::logprobs)},
                   {"speculative-method", changed(&F::speculative_method)},
                   {"num-speculative-tokens", changed(&F::num_speculative_tokens)}},
                  "a GPT");
    const bool draws = changed(&F::top_k) || changed(&F::top_p) || changed(&F::min_p) || changed(&F::seed);
    if (draws && !changed(&F::temperature))
      throw ConfigError(rule_got_fix("generate: a T5 draws tokens where --temperature is given.",
                                     "--top-k, --top-p, --min-p or --seed without it", "--temperature 1"));
    return;
  }
  need_defaults({{"num-beams", changed(&F::num_beams)},
                 {"length-penalty", changed(&F::length_penalty)},
                 {"early-stopping", changed(&F::early_stopping)}},
                "a T5");
  if (flags.logprobs < -1 || flags.logprobs > 1000)
    throw ConfigError(
        rule_got_fix("generate: --logprobs must be -1 (none) to 1000.", concat(flags.logprobs), "--logprobs 5 --json"));
  if (flags.logprobs >= 0 && !flags.json)
    throw ConfigError(rule_got_fix("generate: --logprobs needs --json.", concat(flags.logprobs), "--json"));
  if (!flags.system.empty() && !flags.chat)
    throw ConfigError(rule_got_fix("generate: --system needs --chat.", "\"" + flags.system + "\"", "--chat"));
  const std::int64_t tokens = flags.num_speculative_tokens;
  if (flags.speculative_method != kMultiToken && tokens != 0)
    throw ConfigError(rule_got_fix("generate: --num-speculative-tokens needs --speculative-method mtp.", concat(tokens),
                                   "--speculative-method mtp"));
}

GenerateFlags generate_flags(const Args& args) {
  GenerateFlags flags;
  const auto rest = config::parse_command_line(flags, args, kUsage);
  if (!rest.empty()) {
    std::error_code unknown;
    const bool is_model = std::filesystem::exists(rest[0], unknown);
    throw ConfigError(rule_got_fix("generate takes options alone.", rest[0],
                                   is_model ? "--load " + rest[0] : concat("--prompt \"", rest[0], "\"")));
  }
  generate::check(sampling_of(flags, 1));
  if (flags.prompt_file.empty()) need_prompts(flags.prompt);
  recipe::check_model_flags(flags, "generate");
  return flags;
}

}  // namespace megatron::app
