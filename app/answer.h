#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "app/trained_model.h"

namespace megatron::app {

/// What `megatron generate` is told of a T5's answers.
struct AnswerFlags {
  std::int64_t max_new_tokens = 64, num_beams = 1;
  double length_penalty = 1;
  std::string early_stopping = "likely";
  bool ignore_eos = false, json = false;
};

/// `megatron generate` with a T5: it reads each prompt, and the best answer that beam search finds is printed. Throws
/// ConfigError for options and prompts that do not fit.
int answer(const TrainedModel& model, const std::vector<std::string>& prompts, const AnswerFlags& flags);

}  // namespace megatron::app
