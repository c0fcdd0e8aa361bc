#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "megatron/data/part_dataset.h"
#include "megatron/interchange/adapters/adapters.h"
#include "megatron/interchange/training_state.h"
#include "megatron/plan/rules.h"

// What a run reads: its data and the checkpoint that it resumes from.
namespace megatron::train {

/// What samples are made with, as the options ask for it.
struct SampleTools {
  std::optional<text::Tokenizer> tokenizer = {};  ///< data.sft, data.fim_data, dpo.beta, a BERT's or T5's masks
  std::optional<text::ChatTemplate> chat = {};    ///< data.sft; with dpo.beta where there is one
};

/// Loads them from data.tokenizer. Throws ConfigError where it is missing or is not what the options need.
SampleTools load_tools(const config::RunConfig& config);

/// What the run reads of one part: one dataset; of validation several where data.multiple_validation_sets asks for
/// them; none where the run does not use the part. Numbers of samples are those of the whole run. `eod`:
/// end-of-document token, or -1 where no option of config.data needs it. `tools`: load_tools(). Throws ConfigError
/// where the options name no data for a part that is used.
std::vector<data::PartSpec> part_specs(const plan::ResolvedRun& run, data::SplitPart part, std::int64_t eod,
                                       const SampleTools& tools);

/// Samples of a global batch of a validation.
std::int64_t validation_batch(const config::TrainConfig& train);

/// Samples of one validation. A validation takes those after the one before it, as Megatron-LM's does.
std::int64_t samples_of_a_validation(const config::RunConfig& config);

/// Where the run saves: checkpoint.save, or train.out/checkpoints.
std::filesystem::path save_folder(const config::RunConfig& config);

/// Whether the run has saved in its folder; iterations of Megatron-LM in the same folder, which it may resume from, are
/// not its own.
bool has_own_checkpoint(const config::RunConfig& config);

/// Where the run starts from; nothing: from new weights. Its own checkpoints come first; checkpoint.load, which may
/// name a run's folder or its checkpoints, is for a run that has none yet.
std::optional<std::filesystem::path> checkpoint_to_load(const config::RunConfig& config);

/// Whether checkpoint.load is the folder that the run saves in and has no checkpoint yet, as in scripts of Megatron-LM
/// that name both from the first start on: the run starts over.
bool begins_where_it_saves(const config::RunConfig& config);

/// Whether the run begins at iteration 0 with the weights of checkpoint.load and nothing else: checkpoint.finetune, or
/// a folder of another program that holds no run; and no checkpoint of its own yet.
bool takes_weights_alone(const config::RunConfig& config);

/// Whether the run resumes one of another program, in checkpoint.load: it has no checkpoint of its own yet.
bool resumes_foreign_run(const config::RunConfig& config);
/// Where that stood, without its optimizer's state where checkpoint.no_load_optim asks for that. Throws ConfigError for
/// what cannot be read.
interchange::TrainingState foreign_run(const config::RunConfig& config);

/// Compares a checkpoint with the run that is to resume from it, without reading its tensors. Throws ConfigError that
/// lists each difference in architecture and the weights that the model has no place for, checkpoint::Damage where its
/// manifest is damaged. Returns the other options that the run has changed, for the user: a heading and a line each,
/// "option: saved -> now"; nothing where all are equal. Left out are options that change nothing of what is computed:
/// where files lie, what is kept and printed, how ranks start.
std::vector<std::string> check_checkpoint(const std::filesystem::path& folder, const plan::ResolvedRun& run);
/// As above, for the run that another program has saved in `folder`.
std::vector<std::string> check_checkpoint(const interchange::TrainingState& training,
                                          const std::filesystem::path& folder, const plan::ResolvedRun& run);

/// The adapters in `folder` with which a run with lora.rank begins. Throws ConfigError where there are none, or they
/// are not those that the options describe.
interchange::OpenedAdapter adapters_to_begin_with(const std::filesystem::path& folder, const plan::ResolvedRun& run);

/// Finds out before ranks start what train() would stumble over: an empty split, tokens that the model does not know
/// (among the first few million), conversations without anything to learn, a checkpoint of another model. Changes
/// nothing but the caches. Throws ConfigError. `say` is told what it waits for, and warnings.
void check_inputs(const plan::ResolvedRun& run, const data::WaitMessage& say = {});

}  // namespace megatron::train
