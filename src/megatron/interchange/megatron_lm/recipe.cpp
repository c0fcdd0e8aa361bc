#include "megatron/interchange/megatron_lm/recipe.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/text/format.h"
#include "megatron/base/text/printable.h"
#include "megatron/families/json_fields.h"
#include "megatron/interchange/megatron_lm/arguments.h"

namespace megatron::interchange {
namespace {

using Kind = PickleNode::Kind;

/// As a command line has it; nothing for what no flag takes.
std::optional<std::string> text_of(const PickleNode& node) {
  switch (node.kind) {
    case Kind::Integer:
      return std::to_string(node.integer);
    case Kind::Float:
      return fmt::format("{}", node.number);
    case Kind::Text:
      return node.text;
    case Kind::Name:
      for (const auto& [name, dtype] : {std::pair{"torch.float32", "fp32"},
                                        {"torch.float16", "fp16"},
                                        {"torch.bfloat16", "bf16"},
                                        {"torch.uint8", "fp8"}})
        if (node.text == name) return dtype;
      return std::nullopt;
    default:
      return std::nullopt;
  }
}

/// What arithmetic may rely on: numbers of a recipe's own rules are judged with them.
void check_counts(const config::RunConfig& recipe, const Arguments& args) {
  constexpr std::int64_t kMaxSteps = std::int64_t{1} << 40, kMaxBatch = std::int64_t{1} << 31;
  struct Count {
    const char* name;
    std::int64_t value, least, most;
  };
  const auto& [train, schedule, optimizer] = std::tie(recipe.train, recipe.schedule, recipe.optimizer);
  for (const auto& [name, value, least, most] :
       {Count{"seq_length", recipe.data.seq_length, 1, families::kMaxPositions},
        Count{"decoder_seq_length", recipe.data.decoder_seq_length, 0, families::kMaxPositions},
        Count{"vocab_extra_ids", recipe.data.vocab_extra_ids, 0, families::kMaxVocab},
        Count{"micro_batch_size", train.micro_batch_size, 1, kMaxBatch},
        Count{"global_batch_size", train.global_batch_size, 1, kMaxBatch},
        Count{"train_iters", train.train_iters, 1, kMaxSteps}, Count{"eval_iters", train.eval_iters, 0, kMaxSteps},
        Count{"eval_interval", train.eval_interval, 0, kMaxSteps},
        Count{"lr_decay_samples", schedule.lr_decay_samples, 0, kMaxSteps * 1024},
        Count{"lr_warmup_samples", schedule.lr_warmup_samples, 0, kMaxSteps * 1024},
        Count{"lr_wsd_decay_samples", schedule.lr_wsd_decay_samples, 0, kMaxSteps * 1024},
        Count{"start_eval_at_iter", train.start_eval_at_iter, 0, kMaxSteps},
        Count{"hysteresis", optimizer.hysteresis, 1, kMaxSteps},
        Count{"save_interval", recipe.checkpoint.save_interval, 0, kMaxSteps}})
    if (value < least || value > most)
      args.refuse(name, concat("a whole number from ", least, " to ", most), concat(value));
  for (const std::int64_t number : schedule.rampup_batch_size)
    if (number < 0 || number > kMaxSteps) args.refuse("rampup_batch_size", "three whole numbers", concat(number));
}

}  // namespace

std::vector<config::SavedArgument> saved_arguments(const Pickle& values, const PickleNode& args,
                                                   const std::string& file) {
  constexpr std::size_t kMaxBytes = std::size_t{1} << 26, kBytesOfValue = 64;
  std::vector<config::SavedArgument> result;
  if (args.kind != Kind::Dict) return result;
  std::size_t bytes = 0;
  const auto add = [&](config::SavedArgument& argument, const PickleNode& node) {
    std::optional<std::string> text = text_of(node);
    if (!text) return false;
    bytes += kBytesOfValue + text->size();  // a list may be the value of many
    if (bytes > kMaxBytes)
      throw ConfigError(
          rule_got_fix(concat(file, ": args must have values of at most ", kMaxBytes, " bytes."), "more"));
    argument.values.push_back(std::move(*text));
    return true;
  };
  for (std::size_t i = 0; i + 1 < args.items.size(); i += 2) {
    const PickleNode &name = values[args.items[i]], &node = values[args.items[i + 1]];
    if (name.kind != Kind::Text || printable(name.text) != name.text) continue;
    config::SavedArgument argument{.name = name.text, .is_truth = node.kind == Kind::Bool, .truth = node.integer != 0};
    bool is_value = argument.is_truth;
    if (node.kind == Kind::List || node.kind == Kind::Tuple)
      is_value = std::ranges::all_of(node.items, [&](std::uint32_t item) { return add(argument, values[item]); });
    else if (!is_value)
      is_value = add(argument, node);
    if (is_value) result.push_back(std::move(argument));
  }
  return result;
}

config::RunConfig recipe_of_arguments(const Pickle& values, const PickleNode& node, const PickleNode* scheduler,
                                      const config::ModelConfig& model, const std::string& file) {
  config::RunConfig recipe = config::saved_recipe("pretrain_" + model.architecture, saved_arguments(values, node, file),
                                                  file, config::SavedShare::Run,
                                                  "--weights-only of checkpoint import, --finetune of a run: they "
                                                  "take the weights alone");
  const Arguments saved(values, node, file);
  check_counts(recipe, saved);
  recipe.model = model;
  // No flag of today's parser sets it.
  recipe.optimizer.decoupled_weight_decay = saved.flag("decoupled_weight_decay", true);
  if (scheduler == nullptr) return recipe;
  const auto count = [&](const char* name, std::int64_t& into) {
    const PickleNode* const found = values.find(*scheduler, name);
    if (found != nullptr && found->kind == Kind::Integer && found->integer >= 0 &&
        found->integer <= (std::int64_t{1} << 60))
      into = found->integer;
  };
  count("lr_decay_steps", recipe.schedule.lr_decay_samples);
  count("lr_warmup_steps", recipe.schedule.lr_warmup_samples);
  if (recipe.schedule.weight_decay_incr_style != "constant")
    count("wd_incr_steps", recipe.schedule.weight_decay_incr_samples);
  if (recipe.schedule.lr_warmup_samples > 0) recipe.schedule.lr_warmup_fraction = 0;
  return recipe;
}

}  // namespace megatron::interchange
