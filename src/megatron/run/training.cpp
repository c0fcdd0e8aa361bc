#include "megatron/run/training.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/text/printable.h"
#include "megatron/checkpoint/files/folder.h"
#include "megatron/checkpoint/model_state.h"
#include "megatron/comm/activity.h"
#include "megatron/comm/agreement.h"
#include "megatron/config/options.h"
#include "megatron/config/value.h"
#include "megatron/interchange/formats.h"
#include "megatron/interchange/hugging_face/companions.h"
#include "megatron/interchange/weights.h"
#include "megatron/kernels/runtime.h"
#include "megatron/parallel/cuda.h"
#include "megatron/plan/parameters/fp8.h"
#include "megatron/plan/rules.h"
#include "megatron/plan/steps/faults.h"
#include "megatron/recipe/resolve.h"
#include "megatron/run/exit_codes.h"
#include "megatron/run/memory_check.h"
#include "megatron/run/monitor.h"
#include "megatron/run/ranks.h"
#include "megatron/run/stop.h"
#include "megatron/supervise/run_files.h"
#include "megatron/train/inputs.h"
#include "megatron/train/iteration.h"
#include "megatron/train/resume/chosen_iteration.h"
#include "megatron/train/resume/resumed_batch.h"
#include "megatron/train/resume/run_folders.h"
#include "megatron/train/tuning/distillation.h"

namespace megatron::run {
namespace {

/// The folder of the model that the run begins with: of a run of adapters what they are trained on.
const std::string& model_folder(const config::RunConfig& config) {
  return config.lora.rank > 0 && !config.lora.base.empty() ? config.lora.base : config.checkpoint.load;
}

// With load_strict off a network that differs is taken as meant, and said.
void warn_of_differences(const config::RunConfig& config) {
  if (!train::takes_weights_alone(config) || config.checkpoint.load_strict || config.lora.rank > 0) return;
  for (const std::string& line : interchange::differences(config.model, config.checkpoint.load))
    write_line(stderr, concat("warning: the network differs from that of ", config.checkpoint.load, ": ", line));
}

/// The tokenizer that lies with the weights to begin with is meant where none is named.
void take_tokenizer_of_weights(config::RunConfig& config) {
  const std::string& load = model_folder(config);
  if (!config.data.tokenizer.empty() || load.empty()) return;
  if (!std::filesystem::exists(load)) {
    // A folder that is missing is what to name, and not the tokenizer that would lie in it.
    if (&load == &config.lora.base || !(train::has_own_checkpoint(config) || train::begins_where_it_saves(config)))
      interchange::format_of(load);
    return;
  }
  try {
    config.data.tokenizer = interchange::companion_folder(load).string();
  } catch (const ConfigError&) {  // the folder holds no model: said where it is opened
  }
}

/// Takes those options of `theirs` for which is_taken(field) and that differ, as `asked` says; what it has changed.
template <class IsTaken>
std::vector<std::string> take_options(config::RunConfig& config, config::RunConfig& theirs, const char* asked,
                                      const std::filesystem::path& folder, const IsTaken& is_taken) {
  const config::Fields from = config::fields_of(theirs), to = config::fields_of(config);
  std::string changed;
  for (std::size_t i = 0; i < to.fields.size(); ++i) {
    const config::Field& field = to.fields[i];
    const std::string before = config::plain_value(field.value), after = config::plain_value(from.fields[i].value);
    if (before == after || !is_taken(field)) continue;
    changed += concat(changed.empty() ? "" : ", ", field.path, " ", before, " -> ", after);
    std::visit([&](auto* option) { *option = *std::get<decltype(option)>(from.fields[i].value); }, field.value);
  }
  if (changed.empty()) return {};
  return {concat("note: ", asked, ": ", changed, ", as in ", folder.string())};
}

/// What checkpoint.use_checkpoint_args asks for; what it has changed. Options that belong to training (dropout, the
/// first weights) come with a run that resumes, and are this run's own where it takes weights alone; rows of padding
/// are a matter of the layout.
std::vector<std::string> take_network_of_checkpoint(config::RunConfig& config) {
  if (!config.checkpoint.use_checkpoint_args) return {};
  auto folder = train::checkpoint_to_load(config);
  if (config.lora.rank > 0) folder = config.lora.base;
  if (!folder || !std::filesystem::exists(*folder))
    return {"note: checkpoint.use_checkpoint_args: there is no checkpoint yet; the options hold as given"};
  const bool resumes =
      interchange::format_of(*folder).knows_training && config.lora.rank == 0 && !train::takes_weights_alone(config);
  config::RunConfig theirs = config;
  theirs.model = interchange::model_config_of(*folder);
  return take_options(config, theirs, "checkpoint.use_checkpoint_args", *folder, [&](const config::Field& field) {
    return field.path != "model.make_vocab_size_divisible_by" &&
           (resumes || field.meaning.affects == config::Affects::Weights);
  });
}

/// The recipe of the newest checkpoint in `folder` that can be read; nothing where there is none: the start says why.
std::optional<config::RunConfig> saved_recipe_in(const std::filesystem::path& folder) {
  if (!interchange::format_of(folder).native)
    return interchange::training_state_of(folder, /*with_optimizer=*/false)->recipe;
  for (const std::filesystem::path& candidate : checkpoint::candidates(folder)) {
    try {
      return checkpoint::saved_recipe(candidate);
    } catch (const std::exception&) {  // damaged: an older one may be whole
    }
  }
  return std::nullopt;
}

/// Names the samples over which rate and weight decay of a run change that change over all of it, where that can be
/// told.
void name_whole_run(config::RunConfig& recipe) {
  config::RunConfig alone = recipe;
  alone.parallel = {};
  alone.train.micro_batch_size = 1;
  alone.optimizer.use_distributed_optimizer = false;
  try {
    const plan::ResolvedRun run = plan::resolve(alone);
    config::ScheduleConfig& schedule = recipe.schedule;
    if (schedule.lr_decay_samples == 0) schedule.lr_decay_samples = run.learning_rate.decay_samples;
    if (schedule.weight_decay_incr_samples == 0 && run.weight_decay)
      schedule.weight_decay_incr_samples = run.weight_decay->samples;
  } catch (const ConfigError&) {  // as the command has them
  }
}

/// What checkpoint.use_checkpoint_schedule asks for; what it has changed.
std::vector<std::string> take_schedule_of_checkpoint(config::RunConfig& config) {
  if (!config.checkpoint.use_checkpoint_schedule || train::takes_weights_alone(config)) return {};
  const auto folder = train::checkpoint_to_load(config);
  if (!folder || !std::filesystem::exists(*folder)) return {};
  const auto saved = saved_recipe_in(*folder);
  if (!saved) return {};
  config::RunConfig theirs = *saved;
  name_whole_run(theirs);
  return take_options(config, theirs, "checkpoint.use_checkpoint_schedule", *folder, [](const config::Field& field) {
    return field.path.starts_with("schedule.lr") || field.path.starts_with("schedule.decoupled_") ||
           field.path == "schedule.min_lr" || field.path == "optimizer.weight_decay" ||
           field.path.ends_with("_weight_decay") || field.path.starts_with("schedule.weight_decay_");
  });
}

/// The vocabulary of Megatron-LM's run in a folder, with the rows that pad it; of its weights alone for a run that
/// takes no more. 0: there is none.
std::int64_t megatron_vocabulary(const config::CheckpointConfig& options) {
  const std::string& load = options.load;
  if (load.empty() || !std::filesystem::exists(load)) return 0;
  const std::filesystem::path run = interchange::foreign_run_in(load);
  if (run.empty()) return 0;
  if (options.finetune) return interchange::model_config_of(run).vocab_size;
  return interchange::training_state_of(run, /*with_optimizer=*/false)->recipe.model.vocab_size;
}

/// A run that begins with one of Megatron-LM's has its rows of padding too, as its softmax goes over them.
std::vector<std::string> take_padded_vocabulary(config::RunConfig& config) {
  const std::string& load = config.checkpoint.load;
  const std::int64_t theirs = megatron_vocabulary(config.checkpoint), ours = config.model.vocab_size;
  if (ours >= theirs) return {};
  config = recipe::with_null_tokenizer(std::move(config));
  config.model.vocab_size = theirs;
  return {concat("note: model.vocab_size ", theirs, ", as in ", load, ", with the rows that pad the vocabulary there")};
}

/// What the last heartbeat calls it.
const char* name_of(train::Outcome outcome) {
  switch (outcome) {
    case train::Outcome::Done:
      return "done";
    case train::Outcome::Interrupted:
      return "interrupted";
    case train::Outcome::Faulty:
      return "failed";
    case train::Outcome::Left:
      break;
  }
  return "left early";
}

int code_of(train::Outcome outcome) {
  if (outcome == train::Outcome::Faulty) return kFaulty;
  return outcome == train::Outcome::Interrupted ? kInterrupted : kDone;
}

/// The checkpoint that a run's folder stands for now: later ones are other weights. Any other folder is itself.
std::filesystem::path checkpoint_of(const std::filesystem::path& base) {
  if (!std::filesystem::exists(base) || !interchange::format_of(base).native) return base;
  return checkpoint::find_checkpoint(base);
}

}  // namespace

TrainingJob open_training(config::RunConfig& config, const ChooseLayout& choose) {
  auto place = comm::place_from(comm::process_environment());
  if (!config.lora.base.empty())  // which checkpoints of the adapters will look for from elsewhere
    config.lora.base = checkpoint_of(std::filesystem::absolute(config.lora.base).lexically_normal()).string();
  train::name_chosen_iteration(config);
  take_tokenizer_of_weights(config);
  std::vector<std::string> notes = take_network_of_checkpoint(config);
  if (train::own_checkpoint_to_go_back_to(config) && !config.train.skip_train)
    notes.push_back(concat("note: the run goes back to its iteration ", config.checkpoint.ckpt_step,
                           "; its later checkpoints stay until it saves over them"));
  for (std::string& note : take_padded_vocabulary(config)) notes.push_back(std::move(note));
  for (std::string& note : take_schedule_of_checkpoint(config)) notes.push_back(std::move(note));
  const std::optional<plan::TeacherNetwork> teacher = train::teacher_of(config);
  if (choose) {
    if (place) config.parallel.world_size = place->world_size;
    if (std::string note = choose(config, place ? place->local_size : 1, teacher); !note.empty())
      notes.push_back(std::move(note));
  }
  const train::ResumedBatch resumed = train::resumed_batch(config);
  const std::int64_t micro_batch = config.train.micro_batch_size;
  auto resolved = recipe::resolve_with_tokenizer(config, {.launched_world_size = place ? place->world_size : 0,
                                                          .needs_data = true,
                                                          .resumed_batch = resumed.size,
                                                          .resumed_samples = resumed.samples,
                                                          .teacher = teacher});
  const config::TrainConfig& now = resolved.run.config.train;
  if (now.micro_batch_size != micro_batch)
    notes.push_back(concat("note: train.micro_batch_size ", now.micro_batch_size, ", not ", micro_batch,
                           ": the run keeps its global batch of ", now.global_batch_size, " samples, on dp ",
                           resolved.run.grid.sample_shares(), "; for another, --global-batch-size"));
  for (const plan::Fault& fault : plan::faults_of(config.guard.inject_faults))
    if (fault.rank >= resolved.run.grid.world_size())
      notes.push_back(concat("note: guard.inject_faults names rank ", fault.rank, ", which this run does not have"));
  const config::LogConfig& log = resolved.run.config.log;
  if (log.profile && log.profile_step_start >= now.train_iters)
    notes.push_back(concat("note: log.profile writes nothing: log.profile_step_start is ", log.profile_step_start,
                           ", counted from 0, and the run ends after ", now.train_iters, " steps"));
  // Without a tokenizer resolve() has thrown.
  return {std::move(resolved.run), std::move(resolved.tokenizer.value()), std::move(place), std::move(notes)};
}

bool speaks_for(const TrainingJob& job) {
  return !starts_processes(job.run, job.place) && (!job.place || job.place->rank == 0);
}

int train(const TrainingJob& job, const TrainingOptions& options) {
  const plan::ResolvedRun& run = job.run;
  const auto& place = job.place;
  const bool starts = starts_processes(run, place);
  const bool needs_eod =
      run.config.data.reset_position_ids || run.config.data.reset_attention_mask || run.config.data.eod_mask_loss;
  const std::int64_t eod = needs_eod ? job.tokenizer.eod_id() : -1;
  check_start(run, place);
  train::check_forward_step(options.forward_step, run);
  if (const auto fp8 = plan::fp8_recipe(run.config.fp8); fp8 && run.config.parallel.device == "cuda")
    parallel::require_fp8_units(*fp8, 0);
  data::WaitMessage say;  // one of the processes that do the work speaks for all
  if (speaks_for(job)) say = [](const std::string& text) { write_line(stderr, text); };
  const bool meets = place && place->world_size > 1;  // others, of which it knows nothing yet
  if (!meets) train::check_inputs(run, say);
  if (run.config.train.kernels != "auto") kernels::force_instruction_set(run.config.train.kernels);
  kernels::set_matmul_precision(run.config.train.matmul_precision);
  check_memory(run, place, plan::Holding::Training);
  check_memory_folder(run, place);
  if (starts) train::try_run_folders(run.config);  // the first rank's process will hold them
  std::optional<train::RunFolders> folders;        // held until the run ends
  std::atomic<train::RunFolders*> held = nullptr;
  // What one rank finds wrong ends them all, before anything is written.
  const auto prepare = [&](const comm::Group& world, at::Device device) {
    const auto beat = train::beat_of(run.config);
    comm::run_together(
        world,
        [&] {
          if (meets) train::check_inputs(run, say);
        },
        beat);
    check_gpu_memory(run, world, device, plan::Holding::Training);
    comm::run_together(
        world,
        [&] {
          if (meets && world.rank() != 0) train::try_to_save(run.config, world.rank());
        },
        beat);
    if (meets) train::require_shared_folder(run.config, world);
    comm::run_together(
        world,
        [&] {
          if (world.rank() != 0) return;
          held = &folders.emplace(run.config);
          interchange::keep_tokenizer(
              job.tokenizer, run.config.train.out,
              train::takes_weights_alone(run.config) || run.config.lora.rank > 0 ? model_folder(run.config) : "");
          warn_of_differences(run.config);
        },
        beat);
  };

  kernels::install_caching_allocator();
  const auto listen = [&] {
    const bool ends_by_usr1 = run.config.train.exit_signal == "SIGUSR1";
    stop_on_signals(ends_by_usr1);
    if (!ends_by_usr1) save_on_signal();
  };
  // A rank that waits for others has nothing to save: until they have met a signal ends it.
  if (options.stop_on_signals && !starts && !meets) listen();
  const auto stop = [&] { return stop_requested() || (options.stop_requested && options.stop_requested()); };
  const comm::Environment variables = comm::process_environment();
  const auto slurm = variables.find("SLURM_JOB_ID");
  const std::string job_id = slurm == variables.end() ? "" : slurm->second;
  const config::RunConfig& config = run.config;
  const auto torchrun = variables.find("TORCHELASTIC_RESTART_COUNT");
  const int by_launcher =
      torchrun == variables.end() ? 0 : static_cast<int>(std::strtol(torchrun->second.c_str(), nullptr, 10));
  std::optional<RunMonitor> monitor;
  if (!starts)
    monitor.emplace(RunMonitor::Options{
        .out = config.train.out,
        .heartbeat_s = config.log.heartbeat_s,
        .hang_dump_s = config.guard.hang_dump_s > 0 ? config.guard.hang_dump_s : config.parallel.timeout_s / 2,
        .listens = options.stop_on_signals,
        .train_iters = config.train.train_iters,
        .world_size = run.grid.world_size(),
        .restarts = supervise::restarts_told(std::filesystem::path(config.train.out) / "events.jsonl") + by_launcher,
        .may_write = [&] { return held == nullptr || held.load()->are_held(); }});
  return run_on_ranks(run, place, [&](const comm::Group& ranks, at::Device device) {
    try {
      if (options.stop_on_signals && meets) listen();
      RunMonitor::Watched watched(*monitor, ranks.rank());
      const comm::Group world = comm::observed(ranks, watched.activity());
      const auto outcome = with_planned_memory(run, world, device, [&] {
        return train::train(
            run, eod, world, device, stop, [&] { prepare(world, device); }, options.forward_step, job_id,
            {.saves_requested = saves_requested, .activity = &watched.activity(), .require_folders = [&] {
               if (held != nullptr) held.load()->require_held();
             }});
      });
      watched.end(name_of(outcome));
      return code_of(outcome);
    } catch (const comm::AgreedError&) {
      throw;
    } catch (const ConfigError& error) {  // too late for exit code 2: the run has begun and has written files
      throw std::runtime_error(error.what());
    }
  });
}

}  // namespace megatron::run
