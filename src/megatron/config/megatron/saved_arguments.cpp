#include "megatron/config/megatron/saved_arguments.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/text/printable.h"
#include "megatron/config/megatron/python_names.h"
#include "megatron/config/megatron/translation.h"

namespace megatron::config {
namespace {

enum class Share : std::uint8_t { None, Network, Run, Layout };

/// Features whose flags change neither what a checkpoint holds nor how its run continues.
constexpr std::array<std::string_view, 11> kOfNoRun = {"context parallelism in levels",
                                                       "weight sharding over tensor-parallel ranks",
                                                       "other masters with FSDP",
                                                       "other gradients with FSDP",
                                                       "object storage",
                                                       "another job (megatron checkpoint)",
                                                       "injects faults",
                                                       "no communication",
                                                       "not read by any program of theirs",
                                                       "tokenizer metadata",
                                                       "embeddings of BERT as output"};

/// Features without which a run cannot continue, but its weights mean the same.
constexpr std::array<std::string_view, 18> kOfTraining = {"more of FP8",
                                                          "FP4",
                                                          "QK clip",
                                                          "frozen parameters",
                                                          "fp16 master weights",
                                                          "phases of data",
                                                          "surplus of blends",
                                                          "loss on pad tokens",
                                                          "conversations from HF data sets",
                                                          "named prompt formats",
                                                          "logit distillation",
                                                          "fp32 accumulation by name",
                                                          "the batch would follow the layout",
                                                          "random routing, for benchmarks",
                                                          "reinforcement learning",
                                                          "ModelOpt",
                                                          "masters without moments",
                                                          "kitchen library"};

/// Options of a launch.
constexpr std::array<std::string_view, 20> kOfLaunch = {"data.tokenizer",
                                                        "data.tokenizer_type",
                                                        "data.data_cache_path",
                                                        "data.prefetch",
                                                        "train.out",
                                                        "train.exit_interval",
                                                        "train.exit_duration_mins",
                                                        "train.skip_train",
                                                        "train.recompute",
                                                        "train.recompute_method",
                                                        "train.recompute_num_layers",
                                                        "train.recompute_layers",
                                                        "train.memory_limit_gb",
                                                        "train.recompute_partial_microbatches",
                                                        "train.recompute_modules",
                                                        "train.distribute_saved_activations",
                                                        "optimizer.overlap_grad_reduce",
                                                        "optimizer.overlap_param_gather",
                                                        "optimizer.bucket_size",
                                                        "optimizer.data_parallel_sharding_strategy"};

bool among(const auto& names, std::string_view name) { return std::ranges::find(names, name) != names.end(); }

Share share_of_option(const std::string& path) {
  const std::string section = path.substr(0, path.find('.'));
  if (section == "model") return Share::Network;
  if (section == "parallel") return Share::Layout;
  if (among(kOfLaunch, path)) return Share::None;
  const bool run = section == "data" || section == "fim" || section == "train" || section == "fp8" ||
                   section == "optimizer" || section == "schedule" || path == "checkpoint.save_interval" ||
                   path == "guard.skip_iterations";
  return run ? Share::Run : Share::None;
}

Share share_of(const MegatronFlag& flag) {
  if (flag.use == FlagUse::Maps)
    for (const std::string& path : mapped_paths(flag))
      if (const Share share = share_of_option(path); share != Share::None) return share;
  if (flag.use != FlagUse::Missing && flag.use != FlagUse::Refused) return Share::None;
  return among(kOfNoRun, flag.text) ? Share::None : among(kOfTraining, flag.text) ? Share::Run : Share::Network;
}

bool is_asked(Share of_flag, SavedShare share) {
  if (share == SavedShare::Layout) return of_flag == Share::Layout;
  return of_flag == Share::Network || (of_flag == Share::Run && share == SavedShare::Run);
}

bool is_list(FlagKind kind) {
  return kind == FlagKind::List || kind == FlagKind::ListOrNone || kind == FlagKind::Three;
}

/// The command line that saved arguments stand for.
class SavedWords {
 public:
  SavedWords(const std::vector<SavedArgument>& args, SavedShare share, Translation& c)
      : args_(args), share_(share), c_(c) {}

  std::vector<std::string> words() {
    for (const SavedArgument& argument : args_)
      if (!is_derived(argument)) add(argument);
    return std::move(words_);
  }

 private:
  const SavedArgument* find(std::string_view name) const {
    const auto found = std::ranges::find(args_, name, &SavedArgument::name);
    return found == args_.end() ? nullptr : &*found;
  }

  /// Whether it says again what another one says.
  bool is_derived(const SavedArgument& argument) const {
    if (argument.name == "mup_width_mult") return true;
    if (argument.name == "start_weight_decay" || argument.name == "end_weight_decay") {
      const SavedArgument *const constant = find("weight_decay"), *const style = find("weight_decay_incr_style");
      if (style != nullptr && style->values != std::vector<std::string>{"constant"}) return false;
      return constant != nullptr && constant->values == argument.values;
    }
    return argument.name.starts_with("num_") && argument.name.find("virtual") != std::string::npos &&
           find("virtual_pipeline_model_parallel_size") != nullptr;
  }

  /// Its own flag, or that of another name; YAML files, which that table is of, ignore some that are flags here.
  std::optional<PythonName> name_of(const SavedArgument& argument) const {
    if (argument.name == "virtual_pipeline_model_parallel_size") {
      if (find("pipeline_model_parallel_layout") != nullptr) return std::nullopt;
      return PythonName{PythonName::Use::Value, "num-virtual-stages-per-pipeline-rank"};
    }
    if (auto flag = flag_of_python_name(argument.name)) return flag;
    auto row = yaml_key(argument.name);
    const bool is_flag = row && row->use != PythonName::Use::Ignored && row->use != PythonName::Use::Unset;
    return is_flag ? row : std::nullopt;
  }

  void add(const SavedArgument& argument) {
    const auto name = name_of(argument);
    if (!name) return;
    const MegatronFlag& flag = *megatron_flag(name->text);
    if (!is_asked(share_of(flag), share_)) return;
    if (flag.kind == FlagKind::Switch) {
      c_.require(argument.is_truth, argument.name + " must be True or False.", "something else", "");
      if (argument.is_truth && argument.truth == (name->use == PythonName::Use::On)) words_.push_back(flag.flag());
      return;
    }
    if (argument.is_truth && !argument.truth) return;  // as None
    c_.require(!argument.is_truth, argument.name + " must have a value.", "True", "");
    if (argument.values.empty() || !is_plain(argument)) return;
    if (is_list(flag.kind)) return list(argument, flag);
    std::string text;
    for (const std::string& value : argument.values) text += (text.empty() ? "" : ",") + value;
    words_.push_back(concat(flag.flag(), "=", text));
  }

  /// Values come from a file: they are shown in errors and in the recipe.
  bool is_plain(const SavedArgument& argument) {
    constexpr std::size_t kMaxValues = 1 << 16;
    std::size_t bytes = 0;
    for (const std::string& value : argument.values) bytes += value.size();
    const bool few = argument.values.size() <= kMaxValues && bytes <= kMaxValues * 64;
    c_.require(few, concat(argument.name, " must have at most ", kMaxValues, " values."),
               concat(argument.values.size(), ", of ", bytes, " bytes"), "");
    if (!few) return false;
    const auto hidden =
        std::ranges::find_if(argument.values, [](const auto& value) { return printable(value) != value; });
    c_.require(hidden == argument.values.end(), argument.name + " must be a text of visible characters.",
               hidden == argument.values.end() ? "" : in_quotes(*hidden), "");
    return hidden == argument.values.end();
  }

  void list(const SavedArgument& argument, const MegatronFlag& flag) {
    words_.push_back(flag.flag());
    for (const std::string& value : argument.values) {
      c_.require(!value.starts_with('-'), argument.name + " must have values that are no options.", value, "");
      words_.push_back(value);
    }
  }

  const std::vector<SavedArgument>& args_;
  SavedShare share_;
  Translation& c_;
  std::vector<std::string> words_;
};

void translate(Translation& c, SavedShare share) {
  if (share == SavedShare::Layout) return translate_layout(c);
  translate_model(c);
  translate_experts(c);
  translate_positions(c);
  if (share == SavedShare::Network) return;
  for (const auto part : {translate_batches, translate_data, translate_batch_steps, translate_optimizer,
                          translate_schedule, translate_evaluation})
    part(c);
  c.run.data.vocab_extra_ids = c.args.integer("vocab-extra-ids");
  c.run.data.prefetch = DataConfig().prefetch;
  c.run.checkpoint.save_interval = c.args.has("save-interval") ? c.args.integer("save-interval") : 0;
}

/// An expert's capacity is that of each sequence here, there of the part of one that a rank's router sees: a run's
/// layout counts for it alone.
void check_capacity(Translation& c, const std::vector<SavedArgument>& args) {
  const double factor = c.run.model.moe_expert_capacity_factor;
  if (factor == 0) return;
  const auto is_one = [&](std::string_view name) {
    const auto found = std::ranges::find(args, name, &SavedArgument::name);
    return found == args.end() || found->values == std::vector<std::string>{"1"};
  };
  const auto split = std::ranges::find(args, "sequence_parallel", &SavedArgument::name);
  const bool whole = split == args.end() || !split->truth || is_one("tensor_model_parallel_size");
  const bool shared = !is_one("context_parallel_size");
  c.require(whole && !shared,
            concat(shared ? "context_parallel_size must be 1" : "sequence_parallel must be False",
                   " with moe_expert_capacity_factor: of parts of a sequence Megatron-LM drops other tokens."),
            concat("moe_expert_capacity_factor ", factor), "");
}

}  // namespace

RunConfig saved_recipe(const std::string& program, const std::vector<SavedArgument>& args, const std::string& file,
                       SavedShare share, const std::string& fix) {
  const MegatronLaunch launch{.device = "cpu"};
  const MegatronArguments none({});
  Translation reading{.program = program, .args = none, .launch = launch, .saved_in = file, .saved_fix = fix};
  const MegatronArguments words(SavedWords(args, share, reading).words());
  Translation c{.program = program, .args = words, .launch = launch, .saved_in = file, .saved_fix = fix};
  c.errors = reading.errors;
  for (const std::string& error : words.errors())
    c.errors += concat(c.errors.empty() ? "" : "\n", file, ": of the saved arguments, ",
                       error.substr(0, error.find("\n  fix:")));
  if (c.errors.empty()) translate(c, share);  // else values may be no numbers
  if (share == SavedShare::Run) check_capacity(c, args);
  report_absent(c);
  if (!c.errors.empty()) throw ConfigError(c.errors);
  return std::move(c.run);
}

}  // namespace megatron::config
