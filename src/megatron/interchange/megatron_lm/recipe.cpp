#include "megatron/interchange/megatron_lm/recipe.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <vector>

#include "megatron/base/text/format.h"
#include "megatron/config/megatron/train_steps.h"
#include "megatron/interchange/megatron_lm/arguments.h"
#include "megatron/interchange/megatron_lm/run_arguments.h"

namespace megatron::interchange {
namespace {

using Kind = PickleNode::Kind;

constexpr std::int64_t kMaxSteps = std::int64_t{1} << 40, kMaxBatch = std::int64_t{1} << 31;
constexpr std::size_t kMaxPaths = 1 << 16;

/// A list of texts; empty for anything else.
std::vector<std::string> texts(const Pickle& values, const PickleNode* list) {
  std::vector<std::string> result;
  if (list == nullptr || (list->kind != Kind::List && list->kind != Kind::Tuple) || list->items.size() > kMaxPaths)
    return {};
  for (const std::uint32_t item : list->items) {
    const PickleNode& node = values[item];
    if (node.kind == Kind::Integer)
      result.push_back(std::to_string(node.integer));
    else if (node.kind == Kind::Float)
      result.push_back(fmt::format("{}", node.number));
    else if (node.kind == Kind::Text)
      result.push_back(node.text);
    else
      return {};
  }
  return result;
}

/// Takes what the arguments have; where one is absent, Megatron-LM's default is the option's, which is set before.
struct ArgumentReader {
  const Arguments& args;

  void text(const char* name, std::string& value) const { value = args.text(name, value); }
  void flag(const char* name, bool& value) const { value = args.flag(name, value); }
  void number(const char* name, double& value) const { value = args.number(name, value); }
  void size(const char* name, std::int64_t& value) const { value = args.size(name, kMaxBatch, value); }
  void count(const char* name, std::int64_t& value) const { value = args.count(name, kMaxBatch, value); }
};

void read_data(const Pickle& values, const Arguments& args, config::DataConfig& data) {
  data.data_path = texts(values, args.find("data_path"));
  data.train_data_path = texts(values, args.find("train_data_path"));
  data.valid_data_path = texts(values, args.find("valid_data_path"));
  data.test_data_path = texts(values, args.find("test_data_path"));
  data.decoder_seq_length = args.count("decoder_seq_length", kMaxSteps, 0);
}

void read_optimizer(const Arguments& args, config::OptimizerConfig& optimizer) {
  const auto known = config::optimizer_names();
  if (std::ranges::find(known, optimizer.name) == known.end())
    args.refuse("optimizer", "one of --optimizer's", optimizer.name);
  optimizer.loss_scale = args.number("loss_scale", 0);
  optimizer.initial_loss_scale = args.number("initial_loss_scale", optimizer.initial_loss_scale);
  optimizer.min_loss_scale = args.number("min_loss_scale", optimizer.min_loss_scale);
  optimizer.loss_scale_window =
      static_cast<std::int64_t>(args.number("loss_scale_window", static_cast<double>(optimizer.loss_scale_window)));
  optimizer.hysteresis = args.size("hysteresis", kMaxSteps, optimizer.hysteresis);
  optimizer.use_distributed_optimizer = args.flag("use_distributed_optimizer");
}

void read_train(const Arguments& args, config::TrainConfig& train) {
  train.global_batch_size = args.size("global_batch_size", kMaxBatch, train.micro_batch_size);
  train.eval_interval = args.count("eval_interval", kMaxSteps, 0);
  train.seed = static_cast<std::uint64_t>(args.count("seed", kMaxBatch * 2, 1234));
  train.dtype = args.flag("bf16") ? "bf16" : args.flag("fp16") ? "fp16" : "fp32";
}

/// How long the run is, and for how many samples its data is ordered. Its iterations are saved once it has counted
/// them, also where it was given samples.
void read_length(const Arguments& args, config::RunConfig& recipe) {
  const std::int64_t samples = args.size("train_samples", kMaxSteps, 0), batch = recipe.train.global_batch_size;
  const std::vector<std::int64_t>& ramp = recipe.schedule.rampup_batch_size;
  if (samples > 0 && args.find("train_iters") == nullptr)
    recipe.train.train_iters = std::max<std::int64_t>(1, config::steps_of_samples(samples, batch, ramp));
  else
    recipe.train.train_iters = args.size("train_iters", kMaxSteps, recipe.train.train_iters);
  recipe.data.index_samples = config::index_samples_of(samples > 0 ? std::optional(samples) : std::nullopt,
                                                       recipe.train.train_iters, batch, ramp);
}

/// A number of iterations as one of samples.
std::int64_t samples(const Arguments& args, const std::string& name, std::int64_t batch) {
  if (const std::int64_t given = args.count((name + "_samples").c_str(), kMaxSteps, 0); given > 0) return given;
  return args.count((name + "_iters").c_str(), kMaxSteps, 0) * batch;
}

void read_schedule(const Pickle& values, const Arguments& args, const PickleNode* scheduler, std::int64_t batch,
                   config::ScheduleConfig& schedule) {
  schedule.lr_decay_samples = samples(args, "lr_decay", batch);
  schedule.lr_warmup_samples = samples(args, "lr_warmup", batch);
  schedule.lr_warmup_fraction = args.number("lr_warmup_fraction", 0);
  schedule.decoupled_lr = args.number("decoupled_lr", 0);
  schedule.decoupled_min_lr = args.number("decoupled_min_lr", schedule.decoupled_min_lr);
  schedule.lr_wsd_decay_samples = samples(args, "lr_wsd_decay", batch);
  schedule.lr_wsd_decay_style = args.text("lr_wsd_decay_style", schedule.lr_wsd_decay_style);
  if (const PickleNode* ramp = args.find("rampup_batch_size"); ramp != nullptr)
    for (const std::string& word : texts(values, ramp)) {
      std::int64_t number = -1;
      const auto end = word.data() + word.size();
      const auto [at, error] = std::from_chars(word.data(), end, number);
      if (at != end || error != std::errc() || number < 0 || number > kMaxSteps)
        args.refuse("rampup_batch_size", "three whole numbers", "something else");
      schedule.rampup_batch_size.push_back(number);
    }
  if (scheduler == nullptr) return;
  const auto count = [&](const char* name, std::int64_t& into) {
    const PickleNode* const found = values.find(*scheduler, name);
    if (found != nullptr && found->kind == Kind::Integer && found->integer >= 0 &&
        found->integer <= (std::int64_t{1} << 60))
      into = found->integer;
  };
  count("lr_decay_steps", schedule.lr_decay_samples);
  count("lr_warmup_steps", schedule.lr_warmup_samples);
  if (schedule.lr_warmup_samples > 0) schedule.lr_warmup_fraction = 0;
}

}  // namespace

config::RunConfig recipe_of_arguments(const Pickle& values, const PickleNode& node, const PickleNode* scheduler,
                                      const config::ModelConfig& model, const std::string& file) {
  const Arguments args(values, node, file);
  config::RunConfig recipe;
  recipe.model = model;
  recipe.schedule.lr_decay_style = "linear";
  const ArgumentReader reader{args};
  visit_run_arguments(reader, recipe);
  read_data(values, args, recipe.data);
  read_optimizer(args, recipe.optimizer);
  read_train(args, recipe.train);
  read_schedule(values, args, scheduler, recipe.train.global_batch_size, recipe.schedule);
  read_length(args, recipe);
  recipe.checkpoint.save_interval = args.count("save_interval", kMaxSteps, 0);
  return recipe;
}

}  // namespace megatron::interchange
