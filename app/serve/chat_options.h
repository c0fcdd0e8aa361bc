#pragma once
#include <cstdint>
#include <string>

#include "app/jobs.h"
#include "megatron/config/options.h"
#include "megatron/recipe/model_flags.h"

namespace megatron::app {

/// The options of `megatron chat`.
struct ChatFlags : recipe::ModelFlags {
  std::string adapter, system;
  std::int64_t max_new_tokens = 512;
  double temperature = 1, top_p = 1, min_p = 0, repetition_penalty = 1;
  int top_k = 0;
  std::uint64_t seed = 1234;

  void visit(auto& v) {
    recipe::ModelFlags::visit(v);
    recipe::visit_adapter(v, adapter);
    v("system", system, "The system message.", config::Common());
    v("max_new_tokens", max_new_tokens, "Maximum number of tokens of an answer; a full context ends it sooner.",
      config::Common());
    v("temperature", temperature, "Sampling temperature; 0: greedy.", config::Common());
    v("top_k", top_k, "Sample from the k most likely tokens; 0: from all.", config::Common());
    v("top_p", top_p, "Nucleus sampling threshold.", config::Common());
    v("min_p", min_p, "Sample from tokens at least this share as likely as the likeliest; 0: from all.");
    v("repetition_penalty", repetition_penalty,
      "Logits of tokens that were there before are divided by this, negative ones multiplied; 1: none.");
    v("seed", seed, "Seed of the sampling.", config::Common());
  }
};

/// What the words say. Throws HelpRequested, and ConfigError for what is wrong whatever the model is.
ChatFlags chat_flags(const Args& args);

}  // namespace megatron::app
