#include "megatron/train/inputs.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>
#include <string_view>
#include <tuple>

#include "megatron/base/collected_errors.h"
#include "megatron/base/error.h"
#include "megatron/base/named_path.h"
#include "megatron/base/text/format.h"
#include "megatron/base/text/printable.h"
#include "megatron/checkpoint/files/folder.h"
#include "megatron/checkpoint/model_state.h"
#include "megatron/checkpoint/weights.h"
#include "megatron/config/options.h"
#include "megatron/config/unused_options.h"
#include "megatron/config/value.h"
#include "megatron/interchange/formats.h"
#include "megatron/interchange/hugging_face/companions.h"
#include "megatron/interchange/import.h"
#include "megatron/interchange/weights.h"
#include "megatron/plan/parameters/adapters.h"
#include "megatron/plan/parameters/parameters.h"
#include "megatron/plan/steps/batch_schedule.h"
#include "megatron/supervise/memory_folder.h"
#include "megatron/train/data/batches.h"
#include "megatron/train/data/model_samples.h"
#include "megatron/train/resume/chosen_iteration.h"
#include "megatron/train/resume/input_digests.h"
#include "megatron/train/resume/memory_copies.h"
#include "megatron/train/tuning/distillation.h"

namespace megatron::train {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kTokensLookedAt = std::int64_t{1} << 22;  // some milliseconds

// Values of options by their path, as one types them.
class Values {
 public:
  explicit Values(config::RunConfig config) : config_(std::move(config)), fields_(config::fields_of(config_)) {}
  Values(const Values&) = delete;
  Values& operator=(const Values&) = delete;
  std::string operator[](const std::string& path) const {
    const auto found = std::find_if(fields_.fields.begin(), fields_.fields.end(),
                                    [&](const config::Field& field) { return field.path == path; });
    return config::plain_value(found->value);
  }
  const config::Fields& fields() const { return fields_; }

 private:
  config::RunConfig config_;
  config::Fields fields_;  // points into config_
};

// Tokens that are stored as ~id take no part in the loss (data/samples/chats/sft.h).
void check_tokens(const data::IndexedDataset& data, std::int64_t vocab, bool marks) {
  data.verify();
  std::int64_t left = kTokensLookedAt;
  std::vector<std::int64_t> tokens;
  for (std::int64_t sequence = 0; sequence < data.size() && left > 0; ++sequence) {
    tokens.resize(static_cast<std::size_t>(std::min(left, data.length(sequence))));
    data.read(sequence, 0, tokens);
    for (const std::int64_t stored : tokens) {
      const std::int64_t token = marks && stored < 0 ? ~stored : stored;
      if (token < 0 || token >= vocab) fail_for_token(concat(data.prefix(), ", sequence ", sequence), token, vocab);
    }
    left -= static_cast<std::int64_t>(tokens.size());
  }
}

/// Whether what a run computes, and in which layout, is the same with another value of the option.
bool has_no_effect(const config::Field& option, const Values& wanted, const plan::ResolvedRun& run) {
  if (option.path == "parallel.pp_schedule" && run.schedule_file) return true;  // the run keeps a copy under that name
  return option.meaning.affects == config::Affects::Nothing || !config::is_read(option, wanted.fields());
}

std::string text_of(const std::string& value) { return value.empty() ? "(none)" : value; }

/// A run that has skipped a checkpoint of a newer version may not save in its place.
void check_names(std::int64_t from, const config::RunConfig& config) {
  const std::int64_t interval = config.checkpoint.save_interval, last = config.train.train_iters;
  for (const std::int64_t newer : checkpoint::newer_iterations(save_folder(config)))
    if (newer > from && newer <= last && (newer == last || (interval > 0 && newer % interval == 0)))
      throw ConfigError(rule_got_fix(
          "A run must not save where a checkpoint of a newer version is.",
          concat(save_folder(config) / checkpoint::iteration_name(newer), "; the run resumes from iteration ", from),
          "resume with the newer megatron that wrote it; or name other folders: --train.out, --checkpoint.save, "
          "--checkpoint.load"));
}

/// A run that resumes needs all of its model. Whose folder of another program is gone has checkpoints of its own.
void check_load_strict(const config::CheckpointConfig& options) {
  const std::string& load = options.load;
  if (options.load_strict || options.finetune ||
      (!load.empty() && (!fs::exists(load) || (interchange::is_foreign(load) && !interchange::is_foreign_run(load)))))
    return;
  throw ConfigError(rule_got_fix(
      "checkpoint.load_strict false is for runs that take the weights alone: checkpoint.finetune, or another program's "
      "folder without a run to resume.",
      load.empty() ? "checkpoint.finetune false and no checkpoint.load"
                   : concat("checkpoint.finetune false and --load ", load, ", a run to resume"),
      load.empty() ? "--load FOLDER --finetune, or leave --load-strict out"
                   : "--finetune, or leave --load-strict out"));
}

bool names_data(const std::string& path) {
  return path == "data.data_path" || path == "data.data_args_path" || path == "data.train_data_path" ||
         path == "data.valid_data_path" || path == "data.test_data_path" || path == "data.per_split_data_args_path";
}

/// Options that are others than in the checkpoint and have an effect, for the user.
std::vector<std::string> changed_options(const Values& saved, const Values& wanted, const plan::ResolvedRun& run,
                                         const InputChanges& inputs = {}) {
  std::vector<std::string> lines;
  for (const config::Field& option : wanted.fields().fields) {
    const std::string& path = option.path;
    if (saved[path] == wanted[path] || has_no_effect(option, wanted, run)) continue;
    if ((inputs.same_data && names_data(path)) || (inputs.same_base && path == "lora.base")) continue;  // moved
    if (lines.empty()) lines.emplace_back("warning: options differ from those of the checkpoint (saved -> now):");
    // Another beta above 0 is another loss of the same pairs.
    const bool reorders = option.meaning.affects == config::Affects::Samples &&
                          !(path == "dpo.beta" && std::stod(saved[path]) > 0 && std::stod(wanted[path]) > 0);
    lines.push_back(concat("  ", path, ": ", text_of(saved[path]), " -> ", text_of(wanted[path]),
                           reorders ? " (samples come in another order than before)" : ""));
  }
  const auto is_named = [&](const config::Field& option) {
    return names_data(option.path) && saved[option.path] != wanted[option.path];
  };
  if (inputs.other_data && std::ranges::none_of(wanted.fields().fields, is_named))
    lines.emplace_back(
        "warning: the data is not that of the checkpoint: files of the same names hold something else; samples come in "
        "another order than before");
  if (inputs.other_splitting)
    lines.emplace_back(
        "warning: the tokenizer is not that of the checkpoint: its tokens have the same numbers, but it may split text "
        "otherwise");
  return lines;
}

/// The checkpoint that the run would resume from, as far as sizes tell: what ranks find out later they tell then.
void check_start(const fs::path& folder, const plan::ResolvedRun& run) {
  if (takes_weights_alone(run.config)) {
    if (interchange::format_of(folder).native) checkpoint::check_structure(checkpoint::find_checkpoint(folder));
    if (run.shape.lora) {
      checkpoint::compare_weights(*adapters_to_begin_with(folder, run).matrices, run.shape,
                                  run.config.checkpoint.load_strict);
      return;
    }
    const std::string theirs = interchange::model_config_of(folder).architecture;
    if (theirs != run.config.model.architecture)
      throw ConfigError(rule_got_fix("model.architecture must be that of the weights.",
                                     concat(run.config.model.architecture, ", and ", theirs, " in ", folder.string()),
                                     concat("--model.architecture ", theirs)));
    checkpoint::compare_weights(*interchange::open_weights(folder), run.shape, run.config.checkpoint.load_strict);
    if (run.config.checkpoint.load_strict) interchange::check_same_network(run.config.model, folder);
    return;
  }
  if (!fs::exists(folder)) {
    const std::string near = nearest_beside(folder);
    throw ConfigError(rule_got_fix(
        "checkpoint.load must name a run's folder (latest), one checkpoint (manifest.json), a Hugging Face folder "
        "(config.json) or one of Megatron-LM's checkpoints.",
        place_text(folder),
        concat(near.empty() ? "" : near + "; or ",
               "leave --load out: a run resumes from its own checkpoints anyway; or give --save the same folder, to "
               "begin there")));
  }
  if (resumes_foreign_run(run.config)) {
    check_checkpoint(foreign_run(run.config), folder, run);
    return;
  }
  interchange::format_of(folder);  // says what it has looked for where nothing of it is there
  std::string problems;
  for (const fs::path& candidate : checkpoint::candidates(folder)) {
    try {
      checkpoint::check_structure(candidate);
      check_checkpoint(candidate, run);
      check_names(checkpoint::read_manifest(candidate).iteration, run.config);
      return;
    } catch (const checkpoint::Unreadable& problem) {
      problems += (problems.empty() ? "" : "\n") + std::string(problem.what());
    }
  }
  throw ConfigError(problems);
}

}  // namespace

std::int64_t validation_batch(const config::TrainConfig& train) {
  return train.eval_global_batch_size > 0 ? train.eval_global_batch_size : train.global_batch_size;
}

std::int64_t samples_of_a_validation(const config::RunConfig& config) {
  return config.train.eval_iters * validation_batch(config.train);
}

SampleTools load_tools(const config::RunConfig& config) {
  SampleTools tools;
  if (config.data.sft || config.data.fim_data || config.dpo.beta > 0 ||
      (model_samples(config.model.architecture).needs_tokenizer && !config.data.mock_data))
    tools.tokenizer =
        text::Tokenizer::load(config.data.tokenizer, config.data.tokenizer_type, config.data.vocab_extra_ids);
  if (config.data.sft) tools.chat = text::ChatTemplate::load(config.data.tokenizer);
  if (config.dpo.beta > 0) {
    try {
      tools.chat = text::ChatTemplate::load(config.data.tokenizer);
    } catch (const ConfigError&) {  // preferences of strings need none
    }
  }
  return tools;
}

namespace {

/// Validations whose samples the index is made for: as many as Megatron-LM counts, at least those that there are.
std::int64_t validations_of(const config::TrainConfig& train) {
  const std::int64_t theirs =
      train.train_iters / train.eval_interval + 1 - train.start_eval_at_iter / train.eval_interval;
  return std::max(theirs, train.validations_before(train.train_iters) + 1);
}

}  // namespace

std::vector<data::PartSpec> part_specs(const plan::ResolvedRun& run, data::SplitPart part, std::int64_t eod,
                                       const SampleTools& tools) {
  const config::RunConfig& config = run.config;
  const data::RunBlends blends = data::read_blends(config.data);
  const auto& blend = blends.parts[static_cast<std::size_t>(part)];
  const bool trains = part == data::SplitPart::Train, validates = config.train.eval_interval > 0;
  if (part == data::SplitPart::Valid && !validates) return {};
  const bool tests = part == data::SplitPart::Test, shares_out = tests && !blends.of_its_own;
  if (tests && (!blend || config.train.eval_iters == 0)) return {};
  if (shares_out && (!validates || config.data.mock_data)) return {};
  if (!blend)
    throw ConfigError(rule_got_fix("train.eval_interval needs data to validate on.", "none",
                                   "--eval-interval 0, or --valid-data-path PREFIX"));
  const std::int64_t validations = tests || !validates ? 1 : validations_of(config.train);
  constexpr std::array kWhole = {"1,0,0", "0,1,0", "0,0,1"};
  data::PartSpec spec{.blend = *blend,
                      .split = blends.of_its_own ? kWhole[static_cast<std::size_t>(part)] : config.data.split,
                      .part = part,
                      .index = {.seq_length = config.data.seq_length, .seed = config.train.seed},
                      .cache_folder = config.data.data_cache_path,
                      .packed = config.data.packed,
                      .options = {.eod = eod,
                                  .reset_position_ids = config.data.reset_position_ids,
                                  .reset_attention_mask = config.data.reset_attention_mask,
                                  .eod_mask_loss = config.data.eod_mask_loss},
                      .tokenizer = tools.tokenizer,
                      .chat = tools.chat,
                      .preferences = config.dpo.beta > 0};
  if (spec.preferences && (blend->prefixes.size() > 1 || blend->weights) &&
      !(part == data::SplitPart::Valid && config.data.multiple_validation_sets))
    throw ConfigError(rule_got_fix("With dpo.beta each part is read from one file of preferences.",
                                   concat(blend->prefixes.size(), " files"), "join them: cat A.jsonl B.jsonl"));
  if (config.data.mock_data) spec.mock.vocab = run.shape.vocab;
  if (trains)
    spec.index.num_samples = std::max(run.train_samples, config.data.index_samples);
  else if (!config.data.full_validation || tests)
    spec.index.num_samples = validations * samples_of_a_validation(config);
  if (const auto specify = model_samples(config.model.architecture).specify; specify != nullptr) specify(run, spec);
  if (config.data.fim_data) spec.fill_in_middle = data::fill_in_middle_options(config.fim, *spec.tokenizer);
  if (shares_out && !data::holds_samples(spec)) return {};
  if (part != data::SplitPart::Valid || !config.data.multiple_validation_sets) return {spec};
  std::vector<data::PartSpec> sets;
  for (const std::string& prefix : blend->prefixes) {
    spec.blend = {.prefixes = {prefix}, .weights = {}};
    sets.push_back(spec);
    ++spec.place;
  }
  return sets;
}

fs::path save_folder(const config::RunConfig& config) {
  return config.checkpoint.save.empty() ? fs::path(config.train.out) / "checkpoints" : fs::path(config.checkpoint.save);
}

bool has_own_checkpoint(const config::RunConfig& config) {
  const fs::path own = save_folder(config);
  return checkpoint::has_checkpoint(own) && !interchange::is_foreign(own);
}

std::optional<fs::path> checkpoint_to_load(const config::RunConfig& config) {
  if (has_own_checkpoint(config)) return own_checkpoint_to_go_back_to(config).value_or(save_folder(config));
  const fs::path named = config.checkpoint.load;
  if (named.empty() || begins_where_it_saves(config)) return std::nullopt;
  for (const fs::path& folder : {named / "checkpoints", named})
    if (checkpoint::has_checkpoint(folder)) return folder;
  return named;  // an iter_ folder itself; or else an error of checkpoint::load that says what is missing
}

bool begins_where_it_saves(const config::RunConfig& config) {
  const fs::path named = config.checkpoint.load, own = save_folder(config);
  if (named.empty() || config.checkpoint.finetune || has_own_checkpoint(config)) return false;
  const auto whole = [](const fs::path& path) { return (fs::absolute(path) / "").lexically_normal(); };
  return whole(named) == whole(own) && !(fs::exists(named) && interchange::is_foreign(named));
}

bool takes_weights_alone(const config::RunConfig& config) {
  const std::string& load = config.checkpoint.load;
  if (load.empty() || has_own_checkpoint(config)) return false;
  return config.checkpoint.finetune || (interchange::is_foreign(load) && !interchange::is_foreign_run(load));
}

bool resumes_foreign_run(const config::RunConfig& config) {
  const std::string& load = config.checkpoint.load;
  return !load.empty() && !config.checkpoint.finetune && !has_own_checkpoint(config) &&
         interchange::is_foreign_run(load);
}

interchange::TrainingState foreign_run(const config::RunConfig& config) {
  const config::CheckpointConfig& options = config.checkpoint;
  return with_fix("copy the whole folder again, or leave the optimizer's state out: --no-load-optim", [&] {
    return interchange::training_state_of(options.load, /*with_optimizer=*/!options.no_load_optim).value();
  });
}

/// What makes the option what it was. A vocabulary that grew with another tokenizer shrinks with that one alone.
std::string fix_of_difference(const std::string& path, const Values& saved, const Values& wanted) {
  const std::string tokenizer = saved["data.tokenizer"];
  if (path == "model.max_position_embeddings") {  // which is no less than the samples are long
    std::string fix;
    for (const char* length : {"data.seq_length", "data.decoder_seq_length"})
      if (std::stoll(wanted[length]) > std::stoll(saved[path])) fix += concat("--", length, "=", saved[length], " ");
    return concat(fix, "--", path, "=", saved[path]);
  }
  if (path != "model.vocab_size" || wanted["data.tokenizer"].empty() || wanted["data.tokenizer"] == tokenizer ||
      std::stoll(wanted[path]) < std::stoll(saved[path]))
    return concat("--", path, "=", saved[path]);
  return concat("--tokenizer ", tokenizer.empty() ? "FOLDER, the checkpoint's" : tokenizer,
                "; another tokenizer needs another --train.out");
}

namespace {

/// How a run of its own begins with what of the checkpoint's weights fits; `more`: options that it needs besides.
std::string begin_anew(const fs::path& checkpoint, const config::RunConfig& config, const std::string& more) {
  const bool has_own = has_own_checkpoint(config) || supervise::memory_run(save_folder(config));
  return concat("--load ", checkpoint.string(), " --finetune", more, has_own ? " --train.out FOLDER" : "");
}

/// What is wrong with what the run reads besides its data; "": nothing.
std::string error_of_inputs(const InputDigests& saved, const InputChanges& changes, const fs::path& checkpoint,
                            const std::string& saved_tokenizer, const std::string& saved_base,
                            const plan::ResolvedRun& run) {
  std::string errors;
  const config::RunConfig& config = run.config;
  const auto add = [&](const std::string& rule, const std::string& got, const std::string& fix) {
    errors +=
        (errors.empty() ? "" : "\n") +
        rule_got_fix(concat(rule, " the checkpoint ", checkpoint.string(), "."), got,
                     concat(fix, "; or begin a run of its own with the weights: ", begin_anew(checkpoint, config, "")));
  };
  if (changes.other_vocabulary) {
    const fs::path kept = interchange::companion_folder(checkpoint);
    const bool has_kept = !kept.empty() && has_saved_vocabulary(saved, kept);
    add("The tokenizer must number tokens as that of", config.data.tokenizer + ", which numbers them otherwise",
        concat("--tokenizer ", has_kept                                   ? kept.string()
                               : saved_tokenizer == config.data.tokenizer ? "FOLDER, with what this one held then"
                                                                          : saved_tokenizer));
  }
  if (changes.other_base)
    add("The weights that adapters are trained on must stay those of", config.lora.base + ", which holds others",
        concat("--lora.base ", saved_base == config.lora.base ? "FOLDER, with what this one held then" : saved_base));
  return errors;
}

/// Weights of the checkpoint that the model has no place for, as one error; "": there are none.
std::string error_of_weights(const checkpoint::Manifest& manifest, const fs::path& checkpoint,
                             const plan::ResolvedRun& run) {
  constexpr std::size_t kNamed = 3;
  std::set<std::string> known;
  for (const auto& spec : plan::trained_parameters(run.shape, 1, 0, {plan::whole_model(run.shape.num_layers)}))
    known.insert(spec.name);
  std::string names;
  std::size_t count = 0;
  for (const auto& [name, tensor] : manifest.tensors) {
    if (name.starts_with("optimizer.") || known.contains(name)) continue;
    if (++count <= kNamed) names += concat(count > 1 ? ", " : "", "\"", printable(name), "\"");
  }
  if (count == 0) return "";
  if (count > kNamed) names += concat(" and ", count - kNamed, " more");
  return rule_got_fix(
      concat("The model must use every weight of the checkpoint ", checkpoint.string(), "."),
      names + ", which it does not have",
      concat("give the run the model options that the checkpoint was written with; or begin a run of its "
             "own with the weights that fit: ",
             begin_anew(checkpoint, run.config, " --load-strict false")));
}

/// Added to the fixes of a network that is another: how to keep it, where the weights that both have are equally large.
std::string way_without(const fs::path& checkpoint, const plan::ResolvedRun& run) {
  if (run.shape.lora) return "";
  try {
    checkpoint::compare_weights(*interchange::open_weights(checkpoint), run.shape, /*strict=*/false);
  } catch (const std::exception&) {
    return "";
  }
  return concat("; or begin a run of its own with the weights that fit: ",
                begin_anew(checkpoint, run.config, " --load-strict false"));
}

std::vector<std::string> followed_by(std::vector<std::string> lines, const std::vector<std::string>& more) {
  lines.insert(lines.end(), more.begin(), more.end());
  return lines;
}

/// Samples that the training data has to have for the run of a checkpoint's recipe.
std::int64_t indexed_samples(const config::RunConfig& recipe) {
  const std::string& steps = recipe.schedule.step_batch_size;
  const plan::BatchSchedule batches =
      steps.empty() ? plan::BatchSchedule(recipe.train.global_batch_size, 1, recipe.schedule.rampup_batch_size)
                    : plan::BatchSchedule(plan::read_batch_steps(steps, recipe.data.seq_length), 1, 0);
  return std::max(batches.samples_of(recipe.train.train_iters), recipe.data.index_samples);
}

/// What there is to say of cyclic passes whose size follows from that of the run: another size is another order.
std::vector<std::string> changed_passes(const config::RunConfig& saved, const plan::ResolvedRun& run) {
  const config::DataConfig& data = run.config.data;
  if (data.dataloader_type != "cyclic" || saved.data.dataloader_type != "cyclic") return {};
  const std::int64_t before = indexed_samples(saved), now = std::max(run.train_samples, data.index_samples);
  if (before == now) return {};
  if (!data.mock_data) {
    const auto blend = data::read_blends(data).parts[static_cast<std::size_t>(data::SplitPart::Train)];
    if (blend && blend->prefixes.size() == 1 && !blend->weights) return {};  // passes over the data themselves
  }
  return {
      concat("warning: data.dataloader_type cyclic: a pass over a blend, or over mock data, is over at most the "
             "samples of the run, ",
             before, " in the checkpoint and ", now,
             " now: from here on they may come in another order. data.index_samples, from the first start on, "
             "keeps it")};
}

}  // namespace

std::vector<std::string> check_checkpoint(const fs::path& folder, const plan::ResolvedRun& run) {
  const fs::path found = checkpoint::find_checkpoint(folder);
  const checkpoint::Manifest manifest = checkpoint::read_manifest(found);
  const config::RunConfig recipe = checkpoint::saved_recipe(found);
  const Values saved(recipe), wanted(run.config);
  const auto digests = saved_inputs(manifest.metadata);
  const InputChanges inputs = digests ? compare_inputs(*digests, run) : InputChanges();
  std::string errors;
  const auto add = [&](const std::string& error) { errors += (errors.empty() ? "" : "\n") + error; };
  for (const config::Field& option : wanted.fields().fields) {
    const std::string& path = option.path;
    if (option.meaning.affects != config::Affects::Weights || saved[path] == wanted[path]) continue;
    if (!config::is_read(option, wanted.fields()) && !config::is_read(option, saved.fields())) continue;
    add(rule_got_fix(concat(path, " must be ", saved[path], ", as in the checkpoint ", found.string(), "."),
                     wanted[path], fix_of_difference(path, saved, wanted)));
  }
  if (run.shape.lora && saved["lora.base"].empty() != run.config.lora.base.empty())
    add(rule_got_fix("lora.base must be there, or not, as in the checkpoint.", text_of(wanted["lora.base"]),
                     concat("--lora.base=", saved["lora.base"])));
  if (run.shape.lora && run.config.lora.base.empty() && saved["train.seed"] != wanted["train.seed"])
    add(rule_got_fix("Weights that train.seed draws need that seed.", wanted["train.seed"],
                     concat("--train.seed=", saved["train.seed"])));
  if (!errors.empty()) errors += way_without(found, run);
  if (errors.empty() && digests)
    errors = error_of_inputs(*digests, inputs, found, saved["data.tokenizer"], saved["lora.base"], run);
  if (errors.empty()) errors = error_of_weights(manifest, found, run);  // else they follow from the options
  if (!errors.empty()) throw ConfigError(errors);
  return followed_by(changed_options(saved, wanted, run, inputs), changed_passes(recipe, run));
}

std::vector<std::string> check_checkpoint(const interchange::TrainingState& training, const fs::path& folder,
                                          const plan::ResolvedRun& run) {
  interchange::check_same_network(run.config.model, training.recipe.model, folder);
  checkpoint::compare_weights(*training.tensors, run.shape, /*strict=*/true);
  config::RunConfig saved = training.recipe;
  saved.model = run.config.model;  // the same, with sizes that follow from others written out or not
  return followed_by(changed_options(Values(saved), Values(run.config), run), changed_passes(training.recipe, run));
}

interchange::OpenedAdapter adapters_to_begin_with(const fs::path& folder, const plan::ResolvedRun& run) {
  auto opened =
      interchange::open_adapter(folder, run.config.model, run.config.lora.base, interchange::AdapterUse::Training);
  const bool drawn = interchange::format_of(folder).native && checkpoint::saved_recipe(folder).lora.base.empty();
  if (run.config.lora.base.empty() && !drawn)
    throw ConfigError(rule_got_fix("Adapters need the weights that they were trained on.", "no lora.base",
                                   "--lora.base FOLDER, the model's"));
  const plan::Lora &theirs = opened.lora, &ours = *run.shape.lora;
  if (theirs.rank != ours.rank || theirs.alpha != ours.alpha || theirs.rslora != ours.rslora ||
      theirs.dora != ours.dora)
    throw ConfigError(rule_got_fix(
        concat("lora.rank, lora.alpha, lora.rslora and lora.dora must be those of the adapters in ", folder.string(),
               "."),
        fmt::format("rank {}, alpha {}, rslora {}, dora {}", ours.rank, ours.alpha, ours.rslora, ours.dora),
        fmt::format("--lora.rank {} --lora.alpha {} --lora.rslora {} --lora.dora {}", theirs.rank, theirs.alpha,
                    theirs.rslora, theirs.dora)));
  return opened;
}

namespace {

/// The weights that adapters are trained on, as far as files say it.
void check_base(const plan::ResolvedRun& run) {
  const std::string& base = run.config.lora.base;
  if (!run.shape.lora || base.empty()) return;
  interchange::format_of(base);  // says what it has looked for where nothing of it is there
  if (interchange::holds_adapter(base))
    throw ConfigError(
        rule_got_fix("lora.base must hold the weights of a whole model.", base + ", which holds adapters",
                     concat("--lora.base FOLDER, the model that they were trained on, with --load ", base)));
  checkpoint::compare_weights(*interchange::open_weights(base), plan::without_adapters(run.shape), /*strict=*/true);
  interchange::check_same_network(run.config.model, base);
}

/// What this node's memory keeps of a run that has no checkpoint on its disk must fit it, as one there must.
void check_kept_in_memory(const plan::ResolvedRun& run) {
  if (run.config.train.skip_train || has_own_checkpoint(run.config)) return;
  std::string errors;
  for (const fs::path& kept : whole_in_memory(run.config)) {
    try {
      checkpoint::check_structure(kept);
      check_checkpoint(kept, run);
      return;
    } catch (const checkpoint::Unreadable&) {  // said when it is left out
    } catch (const ConfigError& error) {
      if (errors.empty()) errors = error.what();
    }
  }
  if (!errors.empty()) throw ConfigError(errors);
}

bool may_be_written(const fs::path& folder) { return ::access(folder.c_str(), W_OK | X_OK) == 0; }

/// Whether a folder is one where nothing can be written, or, beside the data, has one for some kind of indices.
bool takes_no_index(const fs::path& folder, bool beside_data) {
  if (!fs::is_directory(folder) || !may_be_written(folder)) return true;
  if (!beside_data) return false;
  return std::ranges::any_of(fs::directory_iterator(folder), [](const fs::directory_entry& entry) {
    return entry.path().filename().string().ends_with("_indices") && takes_no_index(entry.path(), false);
  });
}

/// Ranks write the indices of samples once they have begun: a folder where that cannot be shall be named before. One
/// that is there may have them already, which opening them tells.
void check_cache_folders(const data::PartSpec& spec, const data::WaitMessage& say) {
  for (const std::string& prefix : spec.blend.prefixes) {
    const bool beside_data = spec.cache_folder.empty();
    fs::path folder = beside_data ? fs::path(prefix).parent_path() / "cache" : fs::path(spec.cache_folder);
    folder = fs::absolute(folder).lexically_normal();
    if (fs::exists(folder)) {
      if (takes_no_index(folder, beside_data)) return static_cast<void>(data::open_part(spec, say));
      continue;
    }
    while (!fs::exists(folder) && folder.has_relative_path()) folder = folder.parent_path();
    if (!may_be_written(folder))
      throw ConfigError(
          rule_got_fix("The indices of samples need a folder that may be written, beside the data or named.",
                       concat(folder.string(), ": ", std::strerror(errno)), "--data-cache-path FOLDER"));
  }
}

}  // namespace

void check_inputs(const plan::ResolvedRun& run, const data::WaitMessage& say) {
  if (!run.shape.predicts_tokens())
    throw ConfigError(rule_got_fix("A run that reads text must have model.head tokens.", run.config.model.head,
                                   "--model.head tokens; megatron finetune trains the heads of tasks"));
  // Ranks look into it when they have begun: what the system refuses of it shall be said before.
  if (const fs::path cache = run.config.data.data_cache_path; !cache.empty()) std::ignore = fs::exists(cache / "index");
  const SampleTools tools = load_tools(run.config);
  for (const auto part : {data::SplitPart::Train, data::SplitPart::Valid, data::SplitPart::Test})
    for (const data::PartSpec& spec : part_specs(run, part, /*eod=*/0, tools)) {
      data::check_part(
          spec,
          [&](const data::IndexedDataset& pair) { check_tokens(pair, run.shape.vocab, spec.chat || spec.preferences); },
          say);
      check_cache_folders(spec, say);
    }
  check_load_strict(run.config.checkpoint);
  check_base(run);
  check_teacher(run);
  if (const auto folder = checkpoint_to_load(run.config)) check_start(*folder, run);
  check_kept_in_memory(run);
  if (begins_where_it_saves(run.config) && say)
    say(concat("note: ", run.config.checkpoint.load,
               " has no checkpoint yet: the run starts from scratch and saves there"));
}

}  // namespace megatron::train
