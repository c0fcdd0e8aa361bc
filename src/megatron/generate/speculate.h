#pragma once
#include <cstdint>
#include <vector>

#include "megatron/generate/generate.h"
#include "megatron/generate/sampler.h"
#include "megatron/generate/staged_model.h"
#include "megatron/model/decoding/draft.h"

namespace megatron::generate {

/// Speculative decoding (Leviathan et al. 2023): what was drafted, and what the model would have drawn too.
struct Speculation {
  std::int64_t passes = 0;  ///< of the model, each over the last token and its drafts
  std::int64_t draft_tokens = 0, accepted_tokens = 0;

  /// 0 … 1.
  double accepted_rate() const {
    return draft_tokens > 0 ? static_cast<double>(accepted_tokens) / static_cast<double>(draft_tokens) : 0;
  }
};

/// Bytes of keys, values, states and logits of the text that takes most, on all ranks together: as
/// largest_group_bytes().
std::int64_t largest_text_bytes(const std::vector<std::vector<std::int64_t>>& prompts, const GenerateOptions& options,
                                const plan::ModelShape& shape, std::int64_t element_bytes, int tp = 1);

/// What generate() gives, with the sums over all texts of how it came. `drafter`: of the last stage, null on the
/// others; `tokens`: drafted before each pass, at most its depths. Texts are written one after another.
///
/// One pass of the model over the last token and its drafts gives the logits after each of them. From these tokens are
/// drawn as generate() draws them, by the same numbers, as long as a draft is what was drawn: so the texts are those of
/// generate(), greedy or not, up to logits that are equal to rounding. A draft is one token, the likeliest: that it is
/// what the model draws has the probability by which rejection sampling accepts it.
///
/// Collective, and throws, as generate(); besides, a broadcast of the drafts over the pipeline before each pass.
std::vector<std::vector<std::int64_t>> speculate(const StagedModel& model, model::Drafter* drafter, std::int64_t tokens,
                                                 const std::vector<std::vector<std::int64_t>>& prompts,
                                                 const GenerateOptions& options, Speculation& counts,
                                                 const OnToken& on_token = {});

}  // namespace megatron::generate
