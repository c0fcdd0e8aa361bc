#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "app/jobs.h"
#include "megatron/config/options.h"
#include "megatron/generate/sampling_options.h"
#include "megatron/recipe/model_flags.h"

namespace megatron::app {

/// GenerateFlags::temperature: what is usual for the kind of model.
inline constexpr double kUsualTemperature = -1;
/// GenerateFlags::speculative_method.
inline constexpr const char *kNoSpeculation = "none", *kMultiToken = "mtp";

/// The options of `megatron generate`.
struct GenerateFlags : recipe::ModelFlags {
  std::vector<std::string> prompt;
  std::string prompt_file, adapter;
  bool add_special_tokens = true;
  bool chat = false;
  std::string system;
  std::int64_t max_new_tokens = 64;
  double temperature = kUsualTemperature;
  int top_k = 0;
  double top_p = 1, min_p = 0;
  std::uint64_t seed = 1234;
  std::int64_t num_beams = 1;
  double length_penalty = 1;
  std::string early_stopping = "likely";
  bool ignore_eos = false;
  int logprobs = -1;
  bool json = false;
  std::string speculative_method = kNoSpeculation;
  std::int64_t num_speculative_tokens = 0;

  void visit(auto& v) {
    recipe::ModelFlags::visit(v);
    recipe::visit_adapter(v, adapter);
    v("prompt", prompt, "Prompts to continue, each by itself.", config::Common());
    v("prompt_file", prompt_file, "File with one prompt per line.", config::Common());
    v("add_special_tokens", add_special_tokens,
      "Begin each prompt with what the tokenizer's template sets before a text (<s>), unless it begins so; not with "
      "--chat, whose template says all.");
    v("chat", chat, "Each prompt is a user's message to a chat model, formatted by the template in its folder.",
      config::Common());
    v("system", system, "With --chat: the system message.", config::Common());
    v("max_new_tokens", max_new_tokens, "Maximum number of tokens to generate; a full context ends a text sooner.",
      config::Common());
    v("temperature", temperature, "Sampling temperature; 0: greedy; -1: 1, for a T5 0.", config::Common());
    v("top_k", top_k, "Sample from the k most likely tokens; 0: from all.", config::Common());
    v("top_p", top_p, "Nucleus sampling threshold.", config::Common());
    v("min_p", min_p, "Sample from tokens at least this share as likely as the likeliest; 0: from all.");
    v("seed", seed, "Seed of the sampling.", config::Common());
    v("num_beams", num_beams, "T5: number of beams.");
    v("length_penalty", length_penalty,
      "T5: a beam's score is the sum of its log-probabilities / (its tokens ^ this); above 0 favours long texts.");
    v("early_stopping", early_stopping,
      "T5: when the search ends once num_beams texts are complete: likely, when the best open beam scores below the "
      "worst of them (transformers' False); full, at once (True); never, when none can improve.",
      config::Choices({"likely", "full", "never"}));
    v("ignore_eos", ignore_eos, "Continue past the end-of-text token.");
    v("logprobs", logprobs,
      "With --json: the log-probability of each new token, and the N likeliest tokens in its place; -1: none.");
    v("json", json,
      "Print one JSON object: prompt_ids, new_ids, text, for a T5 score, with --logprobs logprobs and top_logprobs; "
      "with several prompts a list of them as "
      "`texts`.",
      config::Common());
    v("speculative_method", speculative_method,
      "Speculative decoding, one text after another: mtp drafts tokens by the model's depths of multi-token "
      "prediction, "
      "and draws as many at once as agree with them. The texts are those of plain decoding.",
      config::Choices({kNoSpeculation, kMultiToken}));
    v("num_speculative_tokens", num_speculative_tokens,
      "Tokens that are drafted at a time; 0: as many as the model has depths.");
  }
};

/// How tokens are drawn; `usual_temperature`: where none is given.
generate::SamplingOptions sampling_of(const GenerateFlags& flags, double usual_temperature);

/// Throws ConfigError where there is none.
void need_prompts(const std::vector<std::string>& prompts);

/// Throws ConfigError for what the kind of model does not do: an encoder-decoder (T5) searches with beams, and has
/// neither chats nor log-probabilities of tokens.
void check_kind(const GenerateFlags& flags, bool encoder_decoder);

/// What the words say. Throws HelpRequested, and ConfigError for what is wrong whatever the model is.
GenerateFlags generate_flags(const Args& args);

}  // namespace megatron::app
