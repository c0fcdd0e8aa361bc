#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "megatron/generate/sampler.h"
#include "megatron/run/trained_model.h"

namespace megatron::app {

/// What `megatron generate` is told of a T5's answers.
struct AnswerFlags {
  std::int64_t max_new_tokens = 64, num_beams = 1;
  generate::SamplingOptions sampling = {.temperature = 0};
  std::uint64_t seed = 1234;
  double length_penalty = 1;
  std::string early_stopping = "likely";
  bool ignore_eos = false, json = false;
};

/// `megatron generate` with a T5: it reads each prompt, and the best answer that beam search finds, or one that is
/// drawn, is printed; that of one beam to one prompt token by token. `facts`: what the ranks must have in common.
/// Throws ConfigError for options and prompts that do not fit.
int answer(const run::TrainedModel& model, const std::vector<std::string>& prompts, const AnswerFlags& flags,
           const comm::Facts& facts);

}  // namespace megatron::app
