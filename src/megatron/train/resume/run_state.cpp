#include "megatron/train/resume/run_state.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/text/json.h"
#include "megatron/base/text/printable.h"
#include "megatron/checkpoint/files/folder.h"
#include "megatron/checkpoint/model_state.h"
#include "megatron/train/resume/input_digests.h"

namespace megatron::train {
namespace {

using checkpoint::ShardedTensor;

/// The weights can be taken alone.
std::string fix_of_counters(const std::filesystem::path& folder) { return "--finetune --load " + folder.string(); }

constexpr std::int64_t kMaxSamplesOfAStep = std::int64_t{1} << 31, kMaxSamplesOfARun = std::int64_t{1} << 48;

/// The number `name` of a run's metadata, at least `least`.
template <class T>
T number(const checkpoint::Metadata& metadata, const std::string& name, T least, const std::filesystem::path& folder) {
  const auto found = metadata.find(name);
  const auto value = found == metadata.end() ? nlohmann::json() : try_parse_json(found->second).value_or(nullptr);
  const bool valid = std::is_integral_v<T> ? value.is_number_integer() : value.is_number();
  if (!valid || !(value.get<T>() >= least) || !std::isfinite(value.get<double>()))
    throw ConfigError(rule_got_fix(
        concat("The checkpoint in ", folder.string(), " must hold the counter \"", name, "\" of a training run."),
        found == metadata.end() ? "nothing" : printable(found->second.substr(0, 80)), fix_of_counters(folder)));
  return value.get<T>();
}

/// The list `name` of a run's metadata, of finite numbers; empty where it has none.
template <class T>
std::vector<T> list_of(const checkpoint::Metadata& metadata, const std::string& name,
                       const std::filesystem::path& folder) {
  constexpr std::size_t kMaxEntries = 100'000;
  const auto found = metadata.find(name);
  if (found == metadata.end()) return {};
  const auto value = try_parse_json(found->second).value_or(nullptr);
  std::vector<T> list;
  bool valid = value.is_array() && value.size() <= kMaxEntries;
  for (std::size_t i = 0; valid && i < value.size(); ++i) {
    valid = std::is_integral_v<T> ? value[i].is_number_integer() : value[i].is_number();
    if (valid) list.push_back(value[i].template get<T>());
    valid = valid && std::isfinite(static_cast<double>(list.back()));
  }
  if (!valid)
    throw ConfigError(
        rule_got_fix(concat("The checkpoint in ", folder.string(), " must hold \"", name, "\" as a list of numbers."),
                     printable(found->second.substr(0, 80)), fix_of_counters(folder)));
  return list;
}

/// Throws ConfigError for counters that no run arrives at together.
void check_counters(const RunState& state, std::int64_t optimizer_steps, const std::filesystem::path& folder) {
  const auto need = [&](const char* name, std::int64_t value, std::int64_t least, std::int64_t most) {
    if (value >= least && value <= most) return;
    throw ConfigError(
        rule_got_fix(concat("The counters of the checkpoint in ", folder.string(), " must be those of one run: \"",
                            name, "\" from ", least, " to ", most, " at iteration ", state.iteration, "."),
                     concat(value), fix_of_counters(folder)));
  };
  const std::int64_t steps = std::min(state.iteration, kMaxSamplesOfARun / kMaxSamplesOfAStep);
  need("consumed_samples", state.consumed_samples, state.iteration, steps * kMaxSamplesOfAStep);
  need("schedule_samples", state.schedule_samples, 0, state.renumbered ? kMaxSamplesOfARun : state.consumed_samples);
  need("skipped_iterations", state.skipped_iterations, 0, state.iteration);
  need("validated_iteration", state.validated_iteration, 0, state.iteration);
  need(checkpoint::kNonfiniteSteps, state.nonfinite_steps, 0, state.skipped_iterations);
  need("optimizer_steps", optimizer_steps, 0, state.renumbered ? kMaxSamplesOfARun : state.iteration);
}

const plan::ModelShape& shape_of(const Engine& engine) { return engine.stages.front().options().shape; }

constexpr const char* kOptimizer = "optimizer";  // in the metadata: whose state it is

std::string state_prefix(const std::string& kind) { return "optimizer." + kind + "."; }

void add_slice(const Engine& engine, const optim::StateSlice& slice, std::vector<ShardedTensor>& tensors) {
  const auto& spec = engine.parameters.all().at(slice.parameter)->spec;
  const std::string name = slice.kind.empty() ? spec.name : state_prefix(slice.kind) + spec.name;
  for (ShardedTensor& tensor : checkpoint::model_range(name, spec, shape_of(engine), slice.flat.detach(), slice.begin))
    tensors.push_back(std::move(tensor));
}

/// Whether the slice is the weight itself, apart from the parameter: those that update parameters in place have none.
bool is_master(const Engine& engine, const optim::StateSlice& slice) {
  return slice.kind.empty() && engine.optimizer.has_masters();
}

/// Whether the checkpoint has state of this kind at all.
bool has_kind(const checkpoint::Manifest& manifest, const std::string& kind) {
  const auto found = manifest.tensors.lower_bound(state_prefix(kind));
  return found != manifest.tensors.end() && found->first.starts_with(state_prefix(kind));
}

/// The optimizer that wrote the checkpoint. Older ones do not name it, but show it by the state that they hold; ""
/// where they hold none.
std::string optimizer_of(const checkpoint::Manifest& manifest) {
  if (const auto found = manifest.metadata.find(kOptimizer); found != manifest.metadata.end()) {
    if (const auto name = try_parse_json(found->second); name && name->is_string()) return *name;
  }
  for (const config::OptimizerInfo& info : config::optimizers()) {
    config::OptimizerConfig optimizer;
    optimizer.name = info.name;
    const config::StateNames names = config::state_names(optimizer);
    if (std::ranges::all_of(names, [&](const std::string& name) { return has_kind(manifest, name); })) return info.name;
  }
  return "";
}

/// What this rank has of the parameters: they are whole or, where they take turns, its shards.
std::vector<ShardedTensor> values_to_load(const Engine& engine) {
  std::vector<ShardedTensor> tensors;
  if (engine.parameters.pooled_values()) {
    for (const plan::Shard& shard : engine.owned)
      for (const plan::ParameterRange& range : shard.parameters)
        add_slice(engine,
                  {.kind = "",
                   .parameter = static_cast<std::size_t>(range.parameter),
                   .begin = range.param.begin,
                   .flat = engine.parameters.owned_values(range.world)},
                  tensors);
    return tensors;
  }
  for (const auto& parameter : engine.parameters.all())
    for (ShardedTensor& tensor :
         checkpoint::model_tensor(parameter->spec.name, parameter->spec, shape_of(engine), parameter->value.detach()))
      tensors.push_back(std::move(tensor));
  return tensors;
}

constexpr const char *kFp8Scales = "optimizer.fp8.scale", *kFp8History = "optimizer.fp8.amax_history";
constexpr const char* kFp8FirstLayer = "fp8_first_layer";  // of the scales; older checkpoints do not name it

bool has_delayed_scales(const Engine& engine) { return engine.fp8 && engine.fp8->recipe().delayed(); }

/// All of it on every rank, which share the writing.
ShardedTensor whole_tensor(const char* name, const at::Tensor& data) {
  const std::vector<std::int64_t> shape = data.sizes().vec();
  return {.name = name, .global_shape = shape, .offset = std::vector<std::int64_t>(shape.size(), 0), .data = data};
}

/// Fills the scales of layers that compute in fp8, of magnitudes kept longer or shorter than the run keeps them the
/// last ones, by `read`. A checkpoint of another precision has none.
template <class Read>
void load_fp8(const checkpoint::Manifest& manifest, const Read& read, const std::filesystem::path& folder,
              Engine& engine, std::vector<std::string>& messages) {
  if (!engine.fp8) return;
  parallel::Fp8Scaling& fp8 = *engine.fp8;
  fp8.reset();
  if (!fp8.recipe().delayed()) return;  // each pass finds its own
  const auto saved = manifest.tensors.find(kFp8History);
  if (saved == manifest.tensors.end() || !manifest.tensors.contains(kFp8Scales)) {
    messages.emplace_back("warning: scales of fp8 begin as 1: the checkpoint does not have them");
    return;
  }
  const std::vector<std::int64_t>& shape = saved->second.shape;
  // fp8.first_last_layers_bf16 may have been another: so many layers in 8 bits, beginning here, are no others.
  const auto first = manifest.metadata.find(kFp8FirstLayer);
  const bool begins_elsewhere = first != manifest.metadata.end() && first->second != fp8.first_layer();
  if (begins_elsewhere || (shape.size() == 3 && shape[1] != fp8.layers())) {
    messages.emplace_back("warning: scales of fp8 begin as 1: the checkpoint has those of other layers");
    return;
  }
  const std::int64_t steps = std::min(shape.empty() ? 0 : shape[0], fp8.recipe().history);
  ShardedTensor history = whole_tensor(kFp8History, fp8.history().narrow(0, 0, steps));
  if (!shape.empty()) history.global_shape[0] = shape[0];
  read({whole_tensor(kFp8Scales, fp8.scales()), history});
  const auto within = [](const at::Tensor& x, double low, double high) {
    return x.ge(low).logical_and_(x.le(high)).all().item<bool>();
  };
  if (!within(fp8.scales(), 0x1p-126, 0x1p126) || !within(fp8.history(), 0, std::numeric_limits<float>::max()))
    throw ConfigError(
        rule_got_fix(concat("The checkpoint in ", folder.string(),
                            " must hold scales of fp8 from 2^-126 to 2^126 and finite magnitudes from 0 on."),
                     "others", fix_of_counters(folder)));
  fp8.restored();
}

void add_scaler(const Engine& engine, checkpoint::Metadata& metadata) {
  if (!engine.scaler) return;
  const optim::LossScaler::State& state = engine.scaler->state();
  metadata["loss_scale"] = nlohmann::json(state.scale).dump();
  metadata["loss_scale_clean_steps"] = std::to_string(state.clean_steps);
  metadata["loss_scale_hysteresis"] = std::to_string(state.hysteresis);
}

/// Of fp16. A checkpoint of another precision has no loss scale: then it starts over.
void load_scaler(const checkpoint::Metadata& metadata, const std::filesystem::path& folder, Engine& engine,
                 std::vector<std::string>& messages) {
  if (!engine.scaler) return;
  if (!metadata.contains("loss_scale")) {
    messages.push_back(
        concat("warning: the loss scale is reset to ", engine.scaler->scale(), ": the checkpoint does not have one"));
    return;
  }
  const std::int64_t any = std::numeric_limits<std::int64_t>::min();
  engine.scaler->set_state({.scale = number(metadata, "loss_scale", 0.0, folder),
                            .clean_steps = number<std::int64_t>(metadata, "loss_scale_clean_steps", 0, folder),
                            .hysteresis = number<std::int64_t>(metadata, "loss_scale_hysteresis", any, folder)});
}

/// The optimizer's state is taken whole or not at all: moments of one age mean nothing to those of another, whose bias
/// corrections count from the same step, and those of one optimizer nothing to another, whatever they are called.
bool takes_state(const Engine& engine, const checkpoint::Manifest& manifest, bool with_optimizer,
                 std::vector<std::string>& messages) {
  std::string kept, missing;
  for (const std::string& kind : engine.optimizer.kinds()) {
    kept += (kept.empty() ? "" : ", ") + kind;
    if (!has_kind(manifest, kind)) missing += (missing.empty() ? "" : ", ") + kind;
  }
  const std::string before = optimizer_of(manifest), now = engine.optimizer.name();
  if (!before.empty() && before != now) {
    messages.push_back(
        concat("warning: the optimizer was ", before, " and is now ", now,
               ": weights, counters and learning rate continue, ", before, "'s state is left out, and ",
               kept.empty() ? now + " keeps none" : concat("that of ", now, " (", kept, ") starts at zero")));
    return false;
  }
  if (kept.empty() || (with_optimizer && missing.empty())) return true;
  messages.push_back(concat("warning: the optimizer begins with a fresh ", kept,
                            with_optimizer ? ": the checkpoint does not have " + missing : ""));
  return false;
}

}  // namespace

std::vector<ShardedTensor> tensors_to_load(const Engine& engine, bool with_state) {
  std::vector<ShardedTensor> tensors = values_to_load(engine);
  for (const optim::StateSlice& slice : engine.optimizer.state()) {
    if (is_master(engine, slice) || (!slice.kind.empty() && with_state)) add_slice(engine, slice, tensors);
  }
  return tensors;
}

std::vector<std::string> tensors_read_whole(const Engine& engine) {
  if (!has_delayed_scales(engine)) return {};
  return {kFp8Scales, kFp8History};
}

std::vector<ShardedTensor> sharded_tensors(const Engine& engine) {
  std::vector<ShardedTensor> tensors;
  for (const optim::StateSlice& slice : engine.optimizer.state()) add_slice(engine, slice, tensors);
  if (has_delayed_scales(engine)) {  // behind the others: where the first is the ranks talk of saving
    tensors.push_back(whole_tensor(kFp8Scales, engine.fp8->scales()));
    tensors.push_back(whole_tensor(kFp8History, engine.fp8->history()));
  }
  return tensors;
}

checkpoint::Metadata run_metadata(const RunState& state, const Engine& engine, const std::string& recipe,
                                  const std::string& inputs) {
  checkpoint::Metadata metadata = {
      {"consumed_samples", std::to_string(state.consumed_samples)},
      {"schedule_samples", std::to_string(state.schedule_samples)},
      {"skipped_iterations", std::to_string(state.skipped_iterations)},
      {"validated_iteration", std::to_string(state.validated_iteration)},
      {"optimizer_steps", std::to_string(engine.optimizer.steps())},
      {kOptimizer, nlohmann::json(engine.optimizer.name()).dump()},
      {"recipe", nlohmann::json(recipe).dump()},
  };
  if (!state.skipped_batches.empty()) metadata["skipped_batches"] = nlohmann::json(state.skipped_batches).dump();
  if (!inputs.empty()) metadata[kInputs] = inputs;
  if (state.renumbered) metadata[interchange::kRenumbered] = "true";
  if (has_delayed_scales(engine)) metadata[kFp8FirstLayer] = engine.fp8->first_layer();
  if (state.rollbacks > 0) metadata["rollbacks"] = std::to_string(state.rollbacks);
  if (state.nonfinite_steps > 0) metadata[checkpoint::kNonfiniteSteps] = std::to_string(state.nonfinite_steps);
  if (!state.recent_losses.empty()) metadata["recent_losses"] = nlohmann::json(state.recent_losses).dump();
  add_scaler(engine, metadata);
  return metadata;
}

RunState run_state_of(const checkpoint::Manifest& manifest, const std::filesystem::path& folder) {
  const auto read = [&](const char* name) { return number<std::int64_t>(manifest.metadata, name, 0, folder); };
  RunState state{.iteration = manifest.iteration,
                 .consumed_samples = read("consumed_samples"),
                 .schedule_samples = read("schedule_samples"),
                 .skipped_iterations = read("skipped_iterations"),
                 .validated_iteration = read("validated_iteration")};
  // A run that resets its optimizer may never have written how many steps that has done.
  state.skipped_batches = list_of<std::int64_t>(manifest.metadata, "skipped_batches", folder);
  std::ranges::sort(state.skipped_batches);
  state.recent_losses = list_of<double>(manifest.metadata, "recent_losses", folder);
  if (manifest.metadata.contains("rollbacks")) state.rollbacks = read("rollbacks");
  if (manifest.metadata.contains(checkpoint::kNonfiniteSteps))
    state.nonfinite_steps = read(checkpoint::kNonfiniteSteps);
  state.renumbered = manifest.metadata.contains(interchange::kRenumbered);
  check_counters(state, manifest.metadata.contains("optimizer_steps") ? read("optimizer_steps") : 0, folder);
  return state;
}

namespace {

/// Fills `engine` from a checkpoint with this manifest, whose tensors `read` reads.
template <class Read>
RunState load_with(const checkpoint::Manifest& manifest, const Read& read, const std::filesystem::path& folder,
                   Engine& engine, bool with_optimizer, std::vector<std::string>& messages) {
  const RunState state = run_state_of(manifest, folder);
  const bool with_state = takes_state(engine, manifest, with_optimizer, messages);
  read(tensors_to_load(engine, with_state));
  engine.gatherer.forget();
  // Bias corrections belong to the moments: those that are reset begin at step 0.
  engine.optimizer.set_steps(with_state ? number<std::int64_t>(manifest.metadata, "optimizer_steps", 0, folder) : 0);
  load_scaler(manifest.metadata, folder, engine, messages);
  load_fp8(manifest, read, folder, engine, messages);
  return state;
}

}  // namespace

RunState load_run(const std::filesystem::path& folder, Engine& engine, bool with_optimizer,
                  std::vector<std::string>& messages) {
  const auto found = checkpoint::find_checkpoint(folder);
  const auto read = [&](const std::vector<ShardedTensor>& tensors) { checkpoint::load(found, tensors); };
  return load_with(checkpoint::read_manifest(found), read, folder, engine, with_optimizer, messages);
}

RunState load_run(const interchange::TrainingState& training, const std::filesystem::path& folder, Engine& engine,
                  bool with_optimizer, std::vector<std::string>& messages) {
  checkpoint::Manifest manifest;
  manifest.iteration = training.iteration;
  manifest.metadata = training.metadata();
  for (const std::string& name : training.tensors->tensors()) {
    manifest.tensors[name];
    for (const std::string& kind : training.kinds) manifest.tensors[interchange::state_name(kind, name)];
  }
  const auto read = [&](const std::vector<ShardedTensor>& tensors) {
    for (const ShardedTensor& tensor : tensors)
      training.tensors->read(tensor.name, {tensor.offset, tensor.data.sizes().vec()}, tensor.data);
  };
  return load_with(manifest, read, folder, engine, with_optimizer, messages);
}

void round_as_trained(Engine& engine) {
  if (!engine.optimizer.round_masters()) return;
  engine.gatherer.start();
  engine.parameters.await_values();
}

RunState load_run(const std::filesystem::path& folder, Engine& engine) {
  std::vector<std::string> messages;
  const RunState state = load_run(folder, engine, true, messages);
  round_as_trained(engine);
  return state;
}

checkpoint::WeightReport load_weights(const checkpoint::WeightSource& source, Engine& engine,
                                      const plan::ModelShape& shape, bool strict) {
  auto report = checkpoint::load_weights(source, engine.parameters, shape, strict);
  engine.gatherer.forget();
  std::vector<ShardedTensor> masters;
  for (const optim::StateSlice& slice : engine.optimizer.state())
    if (is_master(engine, slice) && source.shape(engine.parameters.all().at(slice.parameter)->spec.name) != nullptr)
      add_slice(engine, slice, masters);
  for (const ShardedTensor& tensor : masters)
    source.read(tensor.name, {tensor.offset, tensor.data.sizes().vec()}, tensor.data);
  return report;
}

}  // namespace megatron::train
