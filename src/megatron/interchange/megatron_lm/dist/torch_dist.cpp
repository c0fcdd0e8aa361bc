#include "megatron/interchange/megatron_lm/dist/torch_dist.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/base/stack_frames.h"
#include "megatron/base/text/printable.h"
#include "megatron/checkpoint/model_state.h"
#include "megatron/families/hf_config.h"
#include "megatron/families/hf_family.h"
#include "megatron/interchange/formats.h"
#include "megatron/interchange/megatron_lm/arguments.h"
#include "megatron/interchange/megatron_lm/dist/buffers.h"
#include "megatron/interchange/megatron_lm/dist/dcp_source.h"
#include "megatron/interchange/megatron_lm/dist/dist_names.h"
#include "megatron/interchange/megatron_lm/dist/torch_dist_write.h"
#include "megatron/interchange/megatron_lm/megatron_names.h"
#include "megatron/interchange/megatron_lm/megatron_torch.h"
#include "megatron/interchange/megatron_lm/recipe.h"
#include "megatron/interchange/megatron_lm/saved_run.h"
#include "megatron/plan/parameters/parameters.h"

namespace megatron::interchange {
namespace fs = std::filesystem;
namespace {

using Kind = PickleNode::Kind;
using Places = std::map<std::string, DcpSource::TensorLocation>;

constexpr std::string_view kState = "optimizer.state.";
constexpr const char* kMasters[] = {"fp32_param", "param"};
/// Of several optimizers, of which expert parallelism has two, each may have a prefix.
constexpr std::string_view kChained = "chained_";
constexpr const char* kOptimizers[] = {"", "chained_0.", "chained_1."};

/// Ends rules of an optimizer's state that is not read: each job has an option of its own that leaves it out.
bool is_of_optimizer(const std::string& name) { return name.starts_with("optimizer.") || name.starts_with(kChained); }

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

/// The layers of a stack, by its tensors.
std::int64_t count_layers(const Opened& opened, const std::string& stack) {
  const std::string layers = stack + ".layers.", matrix = "mlp.linear_fc1.weight";
  std::int64_t count = 0;
  if (const DcpTensor* all = opened.tensors->find(layers + matrix); all != nullptr)
    count = all->shape.empty() ? 0 : all->shape[0];
  else
    while (opened.has(concat(layers, count, ".", matrix))) ++count;
  if (count < 1 || count > families::kMaxLayers)
    throw ConfigError(rule_got_fix(
        concat(opened.tensors->name(), ": the ", stack, " must have 1 to ", families::kMaxLayers, " layers."),
        concat(count, " of \"", layers, matrix, "\"")));
  return count;
}

/// What the arguments do not say of the kind of model, the tensors do.
config::ModelConfig model_of(const Opened& opened) {
  const std::string& file = opened.common.name();
  const Pickle& values = opened.common.values();
  KindOfTensors kind{.encoder = opened.has_stack("encoder"), .binary_head = opened.has("binary_head.weight")};
  if (kind.encoder && opened.has_stack("decoder")) kind.decoder_layers = count_layers(opened, "decoder");
  const DcpTensor* const types = opened.tensors->find("embedding.tokentype_embeddings.weight");
  if (types != nullptr && !types->shape.empty()) kind.token_types = types->shape[0];
  config::ModelConfig model = model_of_arguments(values, *opened.args, kind, file);
  // The softmax of Megatron-LM goes over the rows that pad the vocabulary too.
  if (const PickleNode* padded = values.find(*opened.args, "padded_vocab_size"); padded != nullptr)
    model.vocab_size = padded->integer;
  families::check_heads(model, file);
  return model;
}

/// The names that a parameter may have.
std::vector<DistName> names_of(const plan::ModelShape& shape, const std::string& ours) {
  std::vector<DistName> names = dist_names(shape, ours);
  if (const std::string second = second_dist_name(ours); !second.empty()) names.push_back({second});
  return names;
}

/// Where the parameter `spec` is kept under names that begin with `prefix`; nothing where it is not.
std::optional<DcpSource::TensorLocation> find_place(const Opened& opened, const std::string& prefix,
                                                    const plan::ModelShape& model, const plan::ParameterSpec& spec) {
  const std::string& ours = spec.name;
  const std::vector<std::int64_t> shape = checkpoint::true_shape(spec, model);
  for (const DistName& theirs : names_of(model, ours)) {
    const DcpTensor* const tensor = opened.tensors->find(prefix + theirs.name);
    if (tensor == nullptr) continue;
    std::vector<std::int64_t> wanted = theirs.extents;
    wanted.insert(wanted.end(), shape.begin(), shape.end());
    const bool vocabulary = ours.find("word_embeddings") != std::string::npos || ours.starts_with("output_layer.");
    const bool fits =
        tensor->shape == wanted ||
        (vocabulary && checkpoint::inside({std::vector<std::int64_t>(wanted.size(), 0), wanted}, tensor->shape));
    if (tensor->shape.size() != wanted.size() || !fits)
      throw ConfigError(rule_got_fix(concat(opened.tensors->name(), ": \"", printable(prefix + theirs.name),
                                            "\" must have the shape that the arguments say."),
                                     "another"));
    return DcpSource::TensorLocation{tensor, theirs.index, shape};
  }
  return std::nullopt;
}

/// The places of the weights: what no part of the model uses is refused.
Places weight_places(const Opened& opened, const plan::ModelShape& shape,
                     const std::vector<plan::ParameterSpec>& specs) {
  Places places;
  std::set<const DcpTensor*> used;
  for (const plan::ParameterSpec& spec : specs) {
    const auto place = find_place(opened, "", shape, spec);
    if (!place)
      throw ConfigError(rule_got_fix(concat(opened.tensors->name(), ": must hold \"", spec.name, "\", as \"",
                                            dist_names(shape, spec.name).front().name, "\" or under another name."),
                                     "no such tensor"));
    used.insert(place->tensor);
    // What was exported here has some under two names.
    for (const DistName& theirs : dist_names(shape, spec.name)) used.insert(opened.tensors->find(theirs.name));
    if (shape.encoder_decoder()) used.insert(opened.tensors->find(second_dist_name(spec.name)));
    places[spec.name] = *place;
  }
  for (const auto& [name, tensor] : opened.tensors->metadata().tensors)
    if (!is_of_optimizer(name) && !used.contains(&tensor))
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
  // A part of a tensor may be of many experts.
  constexpr std::int64_t kMostExperts = 1 << 17;
  if (shape.experts && shape.experts->count * (shape.num_layers + shape.mtp_depths) > kMostExperts)
    throw ConfigError(rule_got_fix(concat(opened.tensors->name(), ": must have at most ", kMostExperts, " experts."),
                                   concat(shape.experts->count, " in each of ", shape.num_layers, " layers"),
                                   "only checkpoints of so many are read in this format"));
  return plan::model_parameters(shape, 1, 0);
}

/// Those of which a run of `optimizer` keeps state of `kind`.
std::vector<plan::ParameterSpec> with_state(const config::OptimizerConfig& optimizer, const std::string& kind,
                                            std::vector<plan::ParameterSpec> specs) {
  std::erase_if(specs,
                [&](const plan::ParameterSpec& spec) { return !keeps_state(optimizer, kind, spec.is_layer_matrix()); });
  return specs;
}

/// The places of the state of kind `theirs`, of all parameters of `specs`; empty where it has none of it.
Places state_places(const Opened& opened, const std::string& theirs, const plan::ModelShape& shape,
                    const std::vector<plan::ParameterSpec>& specs, const std::string& ours) {
  Places places;
  std::string missing;
  for (const plan::ParameterSpec& spec : specs) {
    if (is_expert_bias(spec.name)) continue;
    std::optional<DcpSource::TensorLocation> place;
    for (const char* const optimizer : kOptimizers)
      if (!place) place = find_place(opened, concat(optimizer, kState, theirs, "."), shape, spec);
    if (place)
      places[ours.empty() ? spec.name : state_name(ours, spec.name)] = *place;
    else
      missing = spec.name;
  }
  if (!places.empty() && !missing.empty())
    throw ConfigError(rule_got_fix(concat(opened.tensors->name(), ": must hold \"", kState, theirs,
                                          "\" of all parameters that the optimizer keeps it of."),
                                   concat("not of ", missing)));
  return places;
}

/// What no optimizer there has a state of has one here, whose gradients are 0.
void add_zero_state(const TrainingState& state, const std::vector<plan::ParameterSpec>& specs, Places& places) {
  for (const plan::ParameterSpec& spec : specs)
    for (const std::string& kind : state.kinds) {
      if (!is_expert_bias(spec.name)) break;
      if (!keeps_state(state.recipe.optimizer, kind, spec.is_layer_matrix())) continue;
      DcpSource::TensorLocation zeros = places.at(spec.name);
      zeros.zeros = true;
      places[state_name(kind, spec.name)] = std::move(zeros);
    }
}

std::unique_ptr<checkpoint::WeightSource> open_weights_of(const fs::path& folder) {
  const Opened opened(find_torch_dist(folder));
  const plan::ModelShape shape = families::shape_of(model_of(opened));
  return std::make_unique<DcpSource>(opened.tensors, weight_places(opened, shape, checked_specs(opened, shape)));
}

/// Whether masters, rounded, are the weights: of the first rows of each parameter.
bool are_masters(const DcpSource& weights, const DcpSource& masters, const std::vector<plan::ParameterSpec>& specs) {
  constexpr std::int64_t kCompared = 4096;
  for (const plan::ParameterSpec& spec : specs) {
    if (is_expert_bias(spec.name)) continue;
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

/// The stages that a run had, as its arguments say. Layers that are shared out evenly, with fewer on the first or the
/// last rank, by the costs of embedding and loss, or as a layout names them.
std::vector<plan::StageSpec> saved_stages(const Opened& opened, const plan::ModelShape& shape) {
  constexpr std::size_t kMaxLayout = 1 << 16;
  const std::string& file = opened.common.name();
  const config::ParallelConfig parallel =
      config::saved_recipe("pretrain_gpt", saved_arguments(opened.common.values(), *opened.args, file), file,
                           config::SavedShare::Layout)
          .parallel;
  constexpr int kMaxStages = 1 << 14;
  if (parallel.pp < 1 || parallel.pp > kMaxStages || parallel.vpp < 1 || parallel.vpp > kMaxStages / parallel.pp ||
      parallel.layers_per_virtual_stage < 0 || parallel.layers_per_virtual_stage > families::kMaxLayers ||
      parallel.first_stage_layers < 0 || parallel.first_stage_layers > families::kMaxLayers ||
      parallel.last_stage_layers < 0 || parallel.last_stage_layers > families::kMaxLayers ||
      parallel.pp_layout.size() > kMaxLayout)
    throw ConfigError(rule_got_fix(concat(file, ": the saved arguments must describe at most ", kMaxStages,
                                          " stages of at most ", families::kMaxLayers, " layers."),
                                   "more, or less than one"));
  try {
    if (parallel.pp_layout.empty()) return plan::stage_parts(parallel, shape.num_layers, {});
    auto parts = plan::parse_layout(parallel.pp_layout, plan::EmptyStages::Allowed);
    std::int64_t layers = 0;
    for (const plan::StageSpec& part : parts) layers += part.num_layers;
    if (layers == shape.num_layers && parts.size() % static_cast<std::size_t>(parallel.pp) == 0) return parts;
    throw ConfigError("other numbers of layers or stages in pipeline_model_parallel_layout");
  } catch (const ConfigError& error) {
    throw ConfigError(rule_got_fix(
        concat(opened.common.name(), ": the stages of state by buffer must be those of a run here", kAsSaved),
        first_line_of(error.what())));
  }
}

/// Adds masters and state that the distributed optimizer has stored by buffer. Which of the two orders of parameters a
/// run had the arguments say only in part; the masters show it.
void add_buffers(const Opened& opened, const plan::ModelShape& shape, const std::vector<plan::ParameterSpec>& specs,
                 TrainingState& state, Places& places) {
  const Arguments args(opened.common.values(), *opened.args, opened.common.name());
  constexpr int kMaxParallel = 1 << 16;
  const std::int64_t tp = args.size("tensor_model_parallel_size", kMaxParallel, 1),
                     experts = shape.experts ? shape.experts->count : 1,
                     ep = shape.experts ? args.size("expert_model_parallel_size", experts, 1) : 1,
                     etp = args.size("expert_tensor_parallel_size", kMaxParallel, tp);
  if (experts % ep != 0)
    args.refuse("expert_model_parallel_size", concat("a divisor of num_experts, ", experts), concat(ep));
  if (shape.experts && ep == 1 && etp != tp)
    throw ConfigError(rule_got_fix(
        concat(opened.common.name(), ": args.expert_tensor_parallel_size must equal tensor_model_parallel_size (", tp,
               ") where expert_model_parallel_size is 1 and state is by buffer", kAsSaved),
        concat(etp)));
  constexpr std::size_t kMostSlices = std::size_t{1} << 23;  // a hundred times those of the largest models
  if (specs.size() > kMostSlices / static_cast<std::size_t>(std::max(tp, etp)))
    throw ConfigError(rule_got_fix(concat(opened.common.name(), ": state by buffer must have at most ", kMostSlices,
                                          " slices of parameters", kAsSaved),
                                   concat(specs.size(), " parameters of ", std::max(tp, etp), " ranks")));
  BufferLayout layout{.tp = static_cast<int>(tp),
                      .pp = static_cast<int>(args.size("pipeline_model_parallel_size", 1 << 14, 1)),
                      .ep = static_cast<int>(ep),
                      .etp = static_cast<int>(etp),
                      .stages = saved_stages(opened, shape),
                      .fused_norms = args.text("transformer_impl", "transformer_engine") != "local",
                      .grouped_experts = args.flag("moe_grouped_gemm")};
  if (shape.latents && layout.tp > 1 && !layout.fused_norms)
    throw ConfigError(rule_got_fix(concat(opened.common.name(),
                                          ": args.transformer_impl must not be local where tensor-parallel ranks "
                                          "have stored the optimizer's state of latents by buffer",
                                          kAsSaved),
                                   "local, which splits by rows what makes latents"));
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
      rule_got_fix(concat(opened.tensors->name(), ": the optimizer's masters must round to the weights."), "others"));
}

/// The dictionary that the distributed optimizer keeps in an object of its own, in a file that `file` becomes; null
/// where there is none.
const PickleNode* kept_object(const Opened& opened, const char* name, std::optional<TorchFile>& file) {
  const auto& objects = opened.tensors->metadata().objects;
  auto found = objects.end();
  for (const char* const optimizer : kOptimizers)
    if (found == objects.end())
      found = objects.find(concat(optimizer, "optimizer.distributed.dp_group_idx_0.", name, "/shard_0_1"));
  if (found == objects.end()) return nullptr;
  file.emplace(opened.tensors->open(found->second));
  const PickleNode& root = file->root();
  return root.kind == Kind::List && root.items.size() == 1 ? &file->values()[root.items[0]] : nullptr;
}

/// Of a dictionary of several optimizers, by their numbers, the first; all have done as many steps.
const PickleNode* first_optimizer(const Pickle& values, const PickleNode* optimizer) {
  if (optimizer == nullptr || optimizer->kind != Kind::Dict || optimizer->items.size() < 2) return optimizer;
  const bool numbered = values[optimizer->items[0]].kind == Kind::Integer;
  return numbered ? &values[optimizer->items[1]] : optimizer;
}

/// The iteration at which a run stood, by the file of its counters; 0: the weights are alone.
std::int64_t iteration_in(const fs::path& found, const TorchFile& common) {
  if (found.filename() == "release") return 0;
  return count_of(common, &common.root(), "iteration").value_or(0);
}

bool is_resumable(const fs::path& folder) {
  const fs::path found = find_torch_dist(folder);
  return iteration_in(found, TorchFile(found / "common.pt")) > 0;
}

std::optional<TrainingState> training_of(const fs::path& folder, bool with_optimizer) {
  const fs::path found = find_torch_dist(folder);
  const Opened opened(found);
  const TorchFile& common = opened.common;
  const Pickle& values = common.values();
  const std::int64_t iteration = iteration_in(found, common);
  if (iteration < 1) return std::nullopt;
  TrainingState state = counters_of(common, *opened.args, model_of(opened), iteration);
  const plan::ModelShape shape = families::shape_of(state.recipe.model);
  const auto specs = checked_specs(opened, shape);
  Places places = weight_places(opened, shape, specs);
  for (const char* const masters : kMasters)
    for (auto& [name, place] : state_places(opened, masters, shape, specs, "")) places[name] = place;
  const config::OptimizerConfig& own = state.recipe.optimizer;
  for (const std::string& kind : with_optimizer ? config::state_names(own) : config::StateNames()) {
    Places found_state = state_places(opened, kind, shape, with_state(own, kind, specs), kind);
    if (!found_state.empty()) state.kinds.push_back(kind);
    for (auto& [name, place] : found_state) place.factor = 1 / written_share(own, kind);
    places.insert(found_state.begin(), found_state.end());
  }
  const bool by_buffer = with_optimizer && state.kinds.empty() && has_buffers(*opened.tensors);
  if (by_buffer) add_buffers(opened, shape, specs, state, places);
  add_zero_state(state, specs, places);
  const PickleNode* const optimizer = first_optimizer(values, values.find(common.root(), "optimizer"));
  std::optional<TorchFile> groups_file, scaler_file;
  const PickleNode* const groups = by_buffer ? kept_object(opened, "optimizer", groups_file) : nullptr;
  const auto steps = groups != nullptr ? optimizer_steps(*groups_file, groups) : optimizer_steps(common, optimizer);
  state.optimizer_steps = steps.value_or(state.iteration);
  const PickleNode* const scaler = by_buffer              ? kept_object(opened, "grad_scaler", scaler_file)
                                   : optimizer == nullptr ? nullptr
                                                          : values.find(*optimizer, "grad_scaler");
  state.loss_scale = loss_scale_of(scaler_file ? *scaler_file : common, scaler);
  state.tensors = std::make_shared<DcpSource>(opened.tensors, std::move(places));
  return state;
}

config::ModelConfig dist_model(const fs::path& folder) { return model_of(Opened(find_torch_dist(folder))); }

}  // namespace

fs::path find_torch_dist(const fs::path& folder) {
  const auto is_one = [](const fs::path& path) {
    return fs::is_regular_file(path / ".metadata") && fs::is_regular_file(path / "common.pt");
  };
  if (is_one(folder)) return folder;
  const fs::path latest = latest_megatron(folder);
  return !latest.empty() && is_one(latest) ? latest : fs::path();
}

WeightFormat torch_dist_format() {
  return {.words = families::kTorchDistWords,
          .detect = [](const fs::path& folder) { return !find_torch_dist(folder).empty(); },
          .model = dist_model,
          .config =
              [](const fs::path& folder) {
                families::FolderConfig config;
                config.model = dist_model(folder);
                config.family = families::find_family(config.model);
                return config;
              },
          .weights = open_weights_of,
          .training = training_of,
          .resumable = is_resumable,
          .holds_depths = [](const families::FolderConfig&) { return true; },
          .write = write_torch_dist};
}

}  // namespace megatron::interchange
