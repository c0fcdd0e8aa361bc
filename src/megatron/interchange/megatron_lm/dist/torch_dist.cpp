#include "megatron/interchange/megatron_lm/dist/torch_dist.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/base/text/printable.h"
#include "megatron/checkpoint/model_state.h"
#include "megatron/interchange/formats.h"
#include "megatron/interchange/hugging_face/hf_config.h"
#include "megatron/interchange/hugging_face/hf_family.h"
#include "megatron/interchange/megatron_lm/arguments.h"
#include "megatron/interchange/megatron_lm/dist/buffers.h"
#include "megatron/interchange/megatron_lm/dist/dcp_source.h"
#include "megatron/interchange/megatron_lm/dist/torch_dist_write.h"
#include "megatron/interchange/megatron_lm/megatron_torch.h"
#include "megatron/interchange/megatron_lm/recipe.h"
#include "megatron/plan/parameters/parameters.h"

namespace megatron::interchange {
namespace fs = std::filesystem;
namespace {

using Kind = PickleNode::Kind;
using Places = std::map<std::string, DcpSource::Place>;

constexpr std::string_view kState = "optimizer.state.";
constexpr const char* kMasters[] = {"optimizer.state.fp32_param.", "optimizer.state.param."};

/// An iteration's folder, opened.
struct Opened {
  explicit Opened(const fs::path& folder)
      : common(folder / "common.pt"), tensors(std::make_shared<const DcpFolder>(folder)) {
    const PickleNode* const found = common.values().find(common.root(), "args");
    if (found == nullptr || found->kind != Kind::Dict)
      throw ConfigError(rule_got_fix(concat(common.name(), ": must hold Megatron-LM's arguments, \"args\"."), "none",
                                     "save the checkpoint with Megatron-LM's training"));
    args = found;
  }
  bool has(const std::string& name) const { return tensors->find(name) != nullptr; }
  /// Whether there are layers of a stack.
  bool has_stack(const std::string& stack) const {
    const auto found = tensors->metadata().tensors.lower_bound(stack + ".layers.");
    return found != tensors->metadata().tensors.end() && found->first.starts_with(stack + ".layers.");
  }

  TorchFile common;
  const PickleNode* args;
  std::shared_ptr<const DcpFolder> tensors;
};

/// What the arguments do not say of the kind of model, the tensors do.
config::ModelConfig model_of(const Opened& opened) {
  const std::string& file = opened.common.name();
  config::ModelConfig model = model_of_arguments(opened.common.values(), *opened.args, file);
  // The softmax of Megatron-LM goes over the rows that pad the vocabulary too.
  if (const PickleNode* padded = opened.common.values().find(*opened.args, "padded_vocab_size"); padded != nullptr)
    model.vocab_size = padded->integer;
  if (opened.has_stack("encoder")) {
    if (opened.has_stack("decoder"))
      throw ConfigError(rule_got_fix(concat(file, ": the model must be a GPT or a BERT."),
                                     "a T5, whose scores and output Megatron-LM computes otherwise than this program"));
    model.architecture = config::kinds_with(&config::ModelTraits::two_segments).front();
    model.bert_binary_head = opened.has("binary_head.weight");
    const DcpTensor* const types = opened.tensors->find("embedding.tokentype_embeddings.weight");
    model.num_tokentypes = types == nullptr || types->shape.empty() ? 0 : types->shape[0];
  }
  check_heads(model, file);
  return model;
}

/// Where the tensor `ours` of `shape` is kept under names that begin with `prefix`; nothing where it is not.
std::optional<DcpSource::Place> find_place(const Opened& opened, const std::string& prefix, const std::string& ours,
                                           const std::vector<std::int64_t>& shape, std::int64_t layers) {
  for (const DistName& theirs : dist_names(ours)) {
    const DcpTensor* const tensor = opened.tensors->find(prefix + theirs.name);
    if (tensor == nullptr) continue;
    std::vector<std::int64_t> wanted = shape;
    if (theirs.layer >= 0) wanted.insert(wanted.begin(), layers);
    const bool vocabulary = ours.find("word_embeddings") != std::string::npos || ours.starts_with("output_layer.");
    const bool fits =
        tensor->shape == wanted ||
        (vocabulary && checkpoint::inside({std::vector<std::int64_t>(wanted.size(), 0), wanted}, tensor->shape));
    if (tensor->shape.size() != wanted.size() || !fits)
      throw ConfigError(rule_got_fix(concat(opened.tensors->name(), ": \"", printable(prefix + theirs.name),
                                            "\" must have the shape that the arguments say."),
                                     "another"));
    return DcpSource::Place{tensor, theirs.layer, shape};
  }
  return std::nullopt;
}

std::int64_t layers_of(const plan::ModelShape& shape) { return shape.num_layers; }

/// The places of the weights: what no part of the model uses is refused.
Places weight_places(const Opened& opened, const plan::ModelShape& shape,
                     const std::vector<plan::ParameterSpec>& specs) {
  Places places;
  std::set<const DcpTensor*> used;
  for (const plan::ParameterSpec& spec : specs) {
    const auto place = find_place(opened, "", spec.name, checkpoint::true_shape(spec, shape), layers_of(shape));
    if (!place)
      throw ConfigError(
          rule_got_fix(concat(opened.tensors->name(), ": must hold \"", spec.name, "\"."), "no such tensor"));
    used.insert(place->tensor);
    places[spec.name] = *place;
  }
  for (const auto& [name, tensor] : opened.tensors->metadata().tensors)
    if (!name.starts_with("optimizer.") && !used.contains(&tensor))
      throw ConfigError(
          rule_got_fix(concat(opened.tensors->name(), ": the weights must be those of the saved arguments."),
                       concat("\"", printable(name), "\" beside them")));
  return places;
}

std::vector<plan::ParameterSpec> checked_specs(const Opened& opened, const plan::ModelShape& shape) {
  // Every layer has entries of its own: more layers than that are not meant.
  std::size_t chunks = 0;
  for (const auto& [name, tensor] : opened.tensors->metadata().tensors) chunks += tensor.chunks.size();
  if (shape.num_layers > static_cast<std::int64_t>(chunks))
    throw ConfigError(
        rule_got_fix(concat(opened.tensors->name(), ": must hold args.num_layers layers, ", shape.num_layers, "."),
                     concat(chunks, " parts of tensors")));
  return plan::model_parameters(shape, 1, 0);
}

/// The places of the state of kind `prefix`, of all parameters; empty where it has none of it.
Places state_places(const Opened& opened, const std::string& prefix, const plan::ModelShape& shape,
                    const std::vector<plan::ParameterSpec>& specs, const std::string& ours) {
  Places places;
  std::string missing;
  for (const plan::ParameterSpec& spec : specs) {
    const auto place = find_place(opened, prefix, spec.name, checkpoint::true_shape(spec, shape), layers_of(shape));
    if (place)
      places[ours.empty() ? spec.name : state_name(ours, spec.name)] = *place;
    else
      missing = spec.name;
  }
  if (!places.empty() && !missing.empty())
    throw ConfigError(rule_got_fix(concat(opened.tensors->name(), ": must hold \"", prefix, "\" of all parameters."),
                                   concat("not of ", missing), "--finetune --load, which takes the weights alone"));
  return places;
}

/// A number, or a tensor of one.
std::optional<double> number_of(const TorchFile& file, const PickleNode* node) {
  if (node == nullptr) return std::nullopt;
  if (node->kind == Kind::Integer) return static_cast<double>(node->integer);
  if (node->kind == Kind::Float) return node->number;
  if (node->kind != Kind::Tensor) return std::nullopt;
  const StoredTensor stored = file.tensor(*node, "a number");
  std::int64_t elements = 1;
  for (const std::int64_t size : stored.shape) elements *= size == 1 ? 1 : 2;
  if (elements != 1) return std::nullopt;
  const at::Tensor value = at::empty(stored.shape, at::kDouble);
  read_stored(stored, {std::vector<std::int64_t>(stored.shape.size(), 0), stored.shape}, value, file.name());
  return *value.const_data_ptr<double>();
}

/// The count under `name`; nothing where it is none.
std::optional<std::int64_t> count_of(const TorchFile& file, const PickleNode* dict, const char* name) {
  if (dict == nullptr) return std::nullopt;
  const auto number = number_of(file, file.values().find(*dict, name));
  if (!number || !(*number >= 0) || *number > 0x1p53) return std::nullopt;
  return static_cast<std::int64_t>(*number);
}

/// How many steps the optimizer has done: of plain optimizers "common_step", of distributed ones "step" of each group.
std::optional<std::int64_t> optimizer_steps(const TorchFile& file, const PickleNode* optimizer) {
  const Pickle& values = file.values();
  for (int depth = 0; optimizer != nullptr && depth < 2; ++depth, optimizer = values.find(*optimizer, "optimizer")) {
    if (const auto steps = count_of(file, values.find(*optimizer, "state"), "common_step")) return steps;
    const PickleNode* const groups = values.find(*optimizer, "param_groups");
    if (groups == nullptr || groups->kind != Kind::List) continue;
    for (const std::uint32_t group : groups->items)
      if (const auto steps = count_of(file, &values[group], "step")) return steps;
  }
  return std::nullopt;
}

/// fp16's: Megatron-Core's trackers count down and up as ours do.
checkpoint::Metadata loss_scale_of(const TorchFile& file, const PickleNode* scaler) {
  const Pickle& values = file.values();
  if (scaler == nullptr) return {};
  const auto scale = number_of(file, values.find(*scaler, "scale"));
  const auto clean = count_of(file, scaler, "growth_tracker");
  const auto left = number_of(file, values.find(*scaler, "hysteresis_tracker"));
  if (!scale || !std::isfinite(*scale) || *scale <= 0 || !clean || !left || std::abs(*left) > 0x1p53) return {};
  return {{"loss_scale", concat(*scale)},
          {"loss_scale_clean_steps", std::to_string(*clean)},
          {"loss_scale_hysteresis", std::to_string(static_cast<std::int64_t>(*left))}};
}

std::unique_ptr<checkpoint::WeightSource> open_weights_of(const fs::path& folder) {
  const Opened opened(find_torch_dist(folder));
  const plan::ModelShape shape = shape_of(model_of(opened));
  return std::make_unique<DcpSource>(opened.tensors, weight_places(opened, shape, checked_specs(opened, shape)));
}

/// Whether masters, rounded, are the weights: of the first rows of each parameter.
bool are_masters(const DcpSource& weights, const DcpSource& masters, const std::vector<plan::ParameterSpec>& specs) {
  constexpr std::int64_t kCompared = 4096;
  for (const plan::ParameterSpec& spec : specs) {
    checkpoint::Box box{std::vector<std::int64_t>(spec.shape.size(), 0), *weights.shape(spec.name)};
    const std::int64_t row = box.shape[0] == 0 ? 1 : box.elements() / box.shape[0];
    box.shape[0] = std::min(box.shape[0], std::max<std::int64_t>(1, kCompared / std::max<std::int64_t>(row, 1)));
    const at::ScalarType type = scalar_type(weights.dtype(spec.name), weights.name());
    const at::Tensor stored = at::empty(box.shape, type), rounded = at::empty(box.shape, type);
    weights.read(spec.name, box, stored);
    masters.read(spec.name, box, rounded);
    if (!stored.equal(rounded)) return false;
  }
  return true;
}

/// Adds masters and state that the distributed optimizer has stored by buffer. Which of the two orders of parameters a
/// run had the arguments say only in part; the masters show it.
void add_buffers(const Opened& opened, const plan::ModelShape& shape, const std::vector<plan::ParameterSpec>& specs,
                 TrainingState& state, Places& places) {
  const Arguments args(opened.common.values(), *opened.args, opened.common.name());
  if (args.find("virtual_pipeline_model_parallel_size") != nullptr)
    args.refuse("virtual_pipeline_model_parallel_size", "None where the optimizer's state is stored by buffer",
                "a number");
  BufferLayout layout{.tp = static_cast<int>(args.size("tensor_model_parallel_size", 1 << 16, 1)),
                      .pp = static_cast<int>(args.size("pipeline_model_parallel_size", 1 << 16, 1)),
                      .fused_norms = args.text("transformer_impl", "transformer_engine") != "local"};
  const DcpSource weights(opened.tensors, places);
  std::string problem;
  for (const bool other : {false, true}) {
    layout.fused_norms = layout.fused_norms != other;
    try {
      Places masters = buffer_places(*opened.tensors, shape, layout, "param");
      if (!are_masters(weights, DcpSource(opened.tensors, masters), specs)) continue;
      for (const std::string& kind : config::state_names(state.recipe.optimizer)) {
        for (auto& [name, place] : buffer_places(*opened.tensors, shape, layout, kind))
          masters[state_name(kind, name)] = std::move(place);
        state.kinds.push_back(kind);
      }
      for (auto& [name, place] : masters) places[name] = std::move(place);
      return;
    } catch (const ConfigError& error) {
      problem = error.what();
    }
  }
  if (!problem.empty()) throw ConfigError(problem);
  throw ConfigError(
      rule_got_fix(concat(opened.tensors->name(), ": the optimizer's masters must round to the weights."), "others",
                   "save it with --dist-ckpt-optim-fully-reshardable, or take the weights alone: --weights-only"));
}

/// The dictionary that the distributed optimizer keeps in an object of its own, in a file that `file` becomes; null
/// where there is none.
const PickleNode* kept_object(const Opened& opened, const char* name, std::optional<TorchFile>& file) {
  const auto& objects = opened.tensors->metadata().objects;
  const auto found = objects.find(concat("optimizer.distributed.dp_group_idx_0.", name, "/shard_0_1"));
  if (found == objects.end()) return nullptr;
  file.emplace(opened.tensors->open(found->second));
  const PickleNode& root = file->root();
  return root.kind == Kind::List && root.items.size() == 1 ? &file->values()[root.items[0]] : nullptr;
}

std::optional<TrainingState> training_of(const fs::path& folder) {
  const fs::path found = find_torch_dist(folder);
  const Opened opened(found);
  const TorchFile& common = opened.common;
  const Pickle& values = common.values();
  const auto iteration = count_of(common, &common.root(), "iteration");
  if (found.filename() == "release" || !iteration || *iteration < 1) return std::nullopt;
  TrainingState state{.iteration = *iteration};
  const PickleNode* const scheduler = values.find(common.root(), "opt_param_scheduler");
  state.recipe = recipe_of_arguments(values, *opened.args, scheduler, model_of(opened), common.name());
  const plan::ModelShape shape = shape_of(state.recipe.model);
  const auto specs = checked_specs(opened, shape);
  Places places = weight_places(opened, shape, specs);
  for (const char* const prefix : kMasters)
    for (auto& [name, place] : state_places(opened, prefix, shape, specs, "")) places[name] = place;
  state.optimizer = state.recipe.optimizer.name;
  for (const std::string& kind : config::state_names(state.recipe.optimizer)) {
    const Places found_state = state_places(opened, concat(kState, kind, "."), shape, specs, kind);
    if (!found_state.empty()) state.kinds.push_back(kind);
    places.insert(found_state.begin(), found_state.end());
  }
  const bool by_buffer = state.kinds.empty() && has_buffers(*opened.tensors);
  if (by_buffer) add_buffers(opened, shape, specs, state, places);
  const PickleNode* const optimizer = values.find(common.root(), "optimizer");
  std::optional<TorchFile> groups_file, scaler_file;
  const PickleNode* const groups = by_buffer ? kept_object(opened, "optimizer", groups_file) : nullptr;
  const auto steps = groups != nullptr ? optimizer_steps(*groups_file, groups) : optimizer_steps(common, optimizer);
  state.optimizer_steps = std::min(steps.value_or(state.iteration), state.iteration);
  const PickleNode* const scaler = by_buffer              ? kept_object(opened, "grad_scaler", scaler_file)
                                   : optimizer == nullptr ? nullptr
                                                          : values.find(*optimizer, "grad_scaler");
  state.loss_scale = loss_scale_of(scaler_file ? *scaler_file : common, scaler);
  const std::int64_t batch = state.recipe.train.global_batch_size;
  state.consumed_samples = count_of(common, opened.args, "consumed_train_samples").value_or(state.iteration * batch);
  state.schedule_samples =
      std::min(count_of(common, scheduler, "num_steps").value_or(state.consumed_samples), state.consumed_samples);
  if (const std::int64_t interval = state.recipe.train.eval_interval; interval > 0)
    state.validated_iteration = state.iteration / interval * interval;
  state.tensors = std::make_shared<DcpSource>(opened.tensors, std::move(places));
  return state;
}

config::ModelConfig dist_model(const fs::path& folder) { return model_of(Opened(find_torch_dist(folder))); }

}  // namespace

std::vector<DistName> dist_names(const std::string& ours) {
  const std::size_t layers = ours.find(".layers.");
  if (layers == std::string::npos) return {{ours}};
  const std::size_t number = layers + 8, dot = ours.find('.', number);
  const std::string stack = ours.substr(0, number), rest = ours.substr(dot + 1);
  const std::int64_t layer = std::stoll(ours.substr(number, dot - number));
  std::vector<std::string> within = {rest};
  for (const auto& [own, fused] :
       {std::pair<std::string, std::string>{"input_layernorm.", "self_attention.linear_qkv.layer_norm_"},
        {"pre_mlp_layernorm.", "mlp.linear_fc1.layer_norm_"}})
    if (rest.starts_with(own)) within.insert(within.begin(), fused + rest.substr(own.size()));
  std::vector<DistName> names;
  for (const std::string& name : within) {
    names.push_back({stack + name, layer});
    names.push_back({ours.substr(0, dot + 1) + name, -1});
  }
  return names;
}

fs::path find_torch_dist(const fs::path& folder) {
  const auto is_one = [](const fs::path& path) {
    return fs::is_regular_file(path / ".metadata") && fs::is_regular_file(path / "common.pt");
  };
  if (is_one(folder)) return folder;
  const fs::path latest = latest_megatron(folder);
  return !latest.empty() && is_one(latest) ? latest : fs::path();
}

WeightFormat torch_dist_format() {
  return {.name = "torch_dist",
          .holder = "one of its distributed checkpoints (common.pt, .metadata)",
          .models =
              "Megatron-LM's distributed checkpoints (--ckpt-format torch_dist): GPT and BERT with the state of "
              "training, of any layout",
          .detect = [](const fs::path& folder) { return !find_torch_dist(folder).empty(); },
          .model = dist_model,
          .config =
              [](const fs::path& folder) {
                FolderConfig config;
                config.model = dist_model(folder);
                config.family = &family_of(config.model);
                return config;
              },
          .weights = open_weights_of,
          .training = training_of,
          .output = "folder to write, for Megatron-LM's --load; must not exist",
          .keeps_training = true,
          .write = write_torch_dist};
}

}  // namespace megatron::interchange
