#include "megatron/config/unread.h"

#include <algorithm>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "megatron/config/value.h"

namespace megatron::config {
namespace {

/// What another option must be for an option to be read.
struct Condition {
  enum class Is { On, Off, OneOf, NoneOf };  ///< On: neither false, 0 nor empty
  const char* option;
  Is is = Is::On;
  std::vector<std::string> values = {};

  bool holds(const std::string& value) const {
    const bool off = value.empty() || value == "false" || value == "0";
    const bool among = std::find(values.begin(), values.end(), value) != values.end();
    return is == Is::On ? !off : is == Is::Off ? off : among == (is == Is::OneOf);
  }
};

/// Options that are read where at least one of the conditions holds.
struct Reading {
  std::vector<const char*> options;
  std::vector<Condition> where;
};

using enum Condition::Is;

/// And what one optimizer alone reads.
std::vector<Reading> with_optimizers(std::vector<Reading> readings) {
  for (const OptimizerOption& option : optimizer_options())
    readings.push_back({{option.path}, {{"optimizer.name", OneOf, option.readers}}});
  return readings;
}

// Where an option depends on two others it stands in two rows: the first that does not hold is named. What is wrong
// rather than harmless is an error of plan/rules.h and not here.
const std::vector<Reading>& readings() {
  static const std::vector<Reading> all = with_optimizers({
      {{"model.num_tokentypes", "model.bert_binary_head"}, {{"model.architecture", OneOf, {"bert"}}}},
      {{"model.num_classes"}, {{"model.head", OneOf, {"classes"}}}},
      {{"model.relative_attention_num_buckets", "model.relative_attention_max_distance"},
       {{"model.position_embedding_type", OneOf, {"relative"}}}},
      {{"model.rotary_base", "model.rotary_percent", "model.rope_low_freq_factor", "model.rope_high_freq_factor",
        "model.rope_original_positions"},
       {{"model.position_embedding_type", OneOf, {"rope"}}}},
      {{"model.rope_low_freq_factor", "model.rope_high_freq_factor", "model.rope_original_positions"},
       {{"model.rope_scaling_factor", NoneOf, {"1"}}}},
      {{"model.add_qkv_bias"}, {{"model.add_bias_linear", Off}}},
      {{"parallel.sp"}, {{"parallel.tp", NoneOf, {"1"}}}},
      {{"parallel.account_for_embedding", "parallel.account_for_loss", "parallel.pp_communication",
        "parallel.scatter_gather"},
       {{"parallel.pp", NoneOf, {"1"}}}},
      {{"data.split"}, {{"data.train_data_path", Off}}},
      {{"data.split"}, {{"data.per_split_data_args_path", Off}}},
      {{"data.multiple_validation_sets", "data.full_validation"}, {{"train.eval_interval"}}},
      {{"data.mask_prob", "data.short_seq_prob"}, {{"model.architecture", OneOf, {"bert", "t5"}}}},
      {{"fim.rate", "fim.spm_rate", "fim.fragment_rate", "fim.split_sample", "fim.no_prefix", "fim.prefix_token",
        "fim.middle_token", "fim.suffix_token", "fim.pad_token", "fim.eod_token"},
       {{"data.fim_data"}}},
      {{"optimizer.decoupled_weight_decay", "optimizer.wd_mult"}, {{"optimizer.weight_decay"}}},
      {{"optimizer.initial_loss_scale", "optimizer.min_loss_scale", "optimizer.loss_scale_window",
        "optimizer.hysteresis"},
       {{"train.dtype", OneOf, {"fp16"}}}},
      {{"optimizer.initial_loss_scale", "optimizer.min_loss_scale", "optimizer.loss_scale_window",
        "optimizer.hysteresis"},
       {{"optimizer.loss_scale", Off}}},
      {{"optimizer.data_parallel_sharding_strategy", "optimizer.overlap_param_gather"},
       {{"optimizer.use_distributed_optimizer"}}},
      {{"schedule.min_lr"}, {{"schedule.lr_decay_style", NoneOf, {"constant"}}}},
      {{"schedule.lr_decay_samples"},
       {{"schedule.lr_decay_style", NoneOf, {"constant"}}, {"schedule.lr_warmup_fraction"}}},
      {{"schedule.lr_warmup_init"}, {{"schedule.lr_warmup_samples"}, {"schedule.lr_warmup_fraction"}}},
      {{"schedule.lr_warmup_fraction"}, {{"schedule.lr_warmup_samples", Off}}},
      {{"schedule.lr_wsd_decay_samples", "schedule.lr_wsd_decay_style"}, {{"schedule.lr_decay_style", OneOf, {"WSD"}}}},
      {{"train.eval_iters"}, {{"train.eval_interval"}, {"data.test_data_path"}, {"data.per_split_data_args_path"}}},
      {{"train.recompute_method"}, {{"train.recompute", OneOf, {"full"}}}},
      {{"train.recompute_modules"}, {{"train.recompute", OneOf, {"selective"}}}},
      {{"checkpoint.no_load_optim"}, {{"checkpoint.finetune", Off}}},
      {{"checkpoint.keep_every"}, {{"checkpoint.keep_last"}}},
  });
  return all;
}

const Field& field_of(const Fields& fields, const std::string& path) {
  const auto found = std::ranges::find(fields.fields, path, &Field::path);
  if (found == fields.fields.end()) throw std::logic_error("no option is named " + path);
  return *found;
}

/// A condition that does not hold: "with --optimizer sgd", "without --eval-interval".
std::string why(const Condition& condition, const Field& field) {
  const std::string flag = "--" + (field.aliases.empty() ? field.path : field.aliases.front());
  if (condition.is == On) return "without " + flag;
  return "with " + flag + (condition.is == Off ? "" : " " + plain_value(field.value));
}

/// Why an option of the row is not read; "" where it is.
std::string why_unread(const Reading& reading, const Fields& fields) {
  std::string reason;
  for (const Condition& condition : reading.where) {
    const Field& field = field_of(fields, condition.option);
    if (condition.holds(plain_value(field.value))) return "";
    reason += (reason.empty() ? "" : " and ") + why(condition, field);
  }
  return reason;
}

}  // namespace

std::string unread_note(RunConfig config, const std::map<std::string, std::string>& given) {
  const Fields fields = fields_of(config);
  std::set<std::string> said;
  std::vector<std::pair<std::string, std::vector<std::string>>> reasons;  // each with the options that it is one for
  for (const Reading& reading : readings()) {
    const std::string reason = why_unread(reading, fields);
    for (const char* option : reading.options) {
      const auto word = given.find(field_of(fields, option).path);
      if (reason.empty() || word == given.end() || !said.insert(option).second) continue;
      auto entry =
          std::find_if(reasons.begin(), reasons.end(), [&](const auto& known) { return known.first == reason; });
      if (entry == reasons.end()) entry = reasons.insert(entry, {reason, {}});
      entry->second.push_back(word->second);
    }
  }
  std::string note;
  for (const auto& [reason, options] : reasons) {
    note += note.empty() ? "note: " : "; ";
    for (std::size_t i = 0; i < options.size(); ++i)
      note += (i == 0 ? "" : i + 1 == options.size() ? " and " : ", ") + options[i];
    note += (options.size() == 1 ? " has no effect " : " have no effect ") + reason;
  }
  return note;
}

}  // namespace megatron::config
