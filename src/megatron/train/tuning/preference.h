#pragma once
#include <filesystem>
#include <memory>
#include <vector>

#include "megatron/config/tuning_config.h"
#include "megatron/train/data/batches.h"
#include "megatron/train/engine.h"

// Direct preference optimization (Rafailov et al. 2023, equation 7): microbatches are pairs of texts, a chosen and a
// rejected answer to one prompt (data/samples/chats/preferences.h). With log p of an answer's tokens under the model
// and log q under the reference, which is the model that the run began with:
//
//   loss = -log sigmoid(beta ((log p - log q)(chosen) - (log p - log q)(rejected)))
namespace megatron::train {

/// The loss of preferences in place of the model's: its sum over pairs, and their number; pairs without counted tokens
/// count nothing. With label_smoothing e the loss is (1 - e) of that and e of the loss of the swapped pair (Mitchell
/// 2023). Batches have reference_b. All logits of a microbatch exist at once, on every rank of tp.
///
/// Its figures are trl's DPOTrainer's, means over pairs. A reward is beta (log p - log q) of an answer:
///   rewards/chosen, rewards/rejected
///   rewards/accuracies   share of pairs whose chosen answer has the larger reward
///   rewards/margins      the chosen answer's reward minus the rejected one's
///   logps/chosen, logps/rejected   log p, summed over the answer's tokens
ForwardStep preference_step(const config::DpoConfig& dpo);

/// Log-probabilities of the answers of documents under the reference, by document.
using References = std::shared_ptr<const std::vector<double>>;

/// Those of all documents of `batches`: computed with the engine's weights as they are, and kept in `file`, or, where
/// `resumes`, read from it. Collective over the world. Throws ConfigError on every rank where a run that resumes does
/// not find them, or finds those of other answers: the file has a checksum of each.
References reference_log_probabilities(const plan::ResolvedRun& run, Engine& engine, const DatasetBatches& batches,
                                       const std::filesystem::path& file, bool resumes);

}  // namespace megatron::train
