#include "megatron/interchange/megatron_lm/megatron_torch.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/base/text/format.h"
#include "megatron/base/text/printable.h"
#include "megatron/checkpoint/files/folder.h"
#include "megatron/checkpoint/model_state.h"
#include "megatron/config/options.h"
#include "megatron/config/run_config.h"
#include "megatron/config/value.h"
#include "megatron/families/hf_config.h"
#include "megatron/families/hf_family.h"
#include "megatron/interchange/formats.h"
#include "megatron/interchange/mapped_source.h"
#include "megatron/interchange/megatron_lm/arguments.h"
#include "megatron/interchange/megatron_lm/dist/torch_dist_write.h"
#include "megatron/interchange/megatron_lm/megatron_names.h"
#include "megatron/interchange/megatron_lm/ranks/rank_files.h"
#include "megatron/interchange/megatron_lm/ranks/rank_state.h"
#include "megatron/interchange/megatron_lm/saved_run.h"
#include "megatron/plan/parameters/parameters.h"

namespace megatron::interchange {
namespace fs = std::filesystem;
namespace {

constexpr const char* kLatest = "latest_checkpointed_iteration.txt";

/// Which part holds a tensor, and its name there.
struct TensorLocation {
  int pp = 0;
  std::size_t chunk = 0;
  std::string name;
};

/// The places of all tensors of the model: its parts in their order are chunk 0 of each pipeline rank, then chunk 1, …
std::map<std::string, TensorLocation> find_places(const RankFiles& files, const RankGrid& grid) {
  std::map<std::string, TensorLocation> places;
  const std::size_t chunks = files.parts(0, 0).size();
  std::map<std::string, std::int64_t> first_layer;  // by stack
  for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
    for (int pp = 0; pp < grid.pp; ++pp) {
      const auto& parts = files.parts(0, pp);
      if (parts.size() != chunks)
        throw ConfigError(rule_got_fix(concat(files.name(), ": all pipeline ranks must have as many parts."),
                                       concat(chunks, " on the first, ", parts.size(), " on rank ", pp)));
      for (const std::string& name : parts[chunk].tensors) {
        std::string global = name;
        if (const std::string stack = layers_in(name); !stack.empty()) {
          std::int64_t layer = -1;
          const std::int64_t layers = parts[chunk].num_layers.at(stack);
          const std::size_t dot = name.find('.', stack.size());
          std::from_chars(name.data() + stack.size(), name.data() + dot, layer);
          if (layer < 0 || layer >= layers)
            throw ConfigError(
                rule_got_fix(concat(files.name(), ": the layers of a part must be counted from 0 to ", layers - 1, "."),
                             concat("\"", printable(name), "\"")));
          global = concat(stack, first_layer[stack] + layer, name.substr(dot));
        }
        places[global] = {pp, chunk, name};
      }
      for (const auto& [stack, layers] : parts[chunk].num_layers) first_layer[stack] += layers;
    }
  }
  return places;
}

/// Layers that are whole on each rank here, and may be split by rows there: those that make latents, without
/// Transformer Engine.
plan::ParameterSpec split_as_stored(plan::ParameterSpec spec, const std::vector<std::int64_t>* stored, int tp) {
  const bool split = tp > 1 && spec.replicated() && spec.name.find("_down_proj.") != std::string::npos &&
                     stored != nullptr && stored->size() == 2 && stored->at(0) < spec.shape[0] &&
                     spec.shape[0] % tp == 0;
  if (split) spec.split_dim = 0;
  return spec;
}

/// Adds what rank `rank` of `tp` holds of one parameter.
void add_pieces(const plan::ParameterSpec& spec, bool gated, int tp, int rank, const std::string& source,
                families::MappedTensor& tensor) {
  std::vector<std::int64_t> origin(spec.shape.size(), 0), extent = spec.shape;
  if (spec.split_dim < 0) {
    if (rank == 0) tensor.pieces.push_back({source, origin, origin, extent});
    return;
  }
  const auto dim = static_cast<std::size_t>(spec.split_dim);
  const std::int64_t halves = gated && spec.name.find(".linear_fc1.") != std::string::npos ? 2 : 1;
  const std::int64_t whole = spec.shape[dim] / halves, length = whole / tp;
  for (std::int64_t half = 0; half < halves; ++half) {
    std::vector<std::int64_t> to = origin, from = origin;
    to[dim] = half * whole + rank * length;
    from[dim] = half * length;
    extent[dim] = length;
    // Rows past the vocabulary are left out.
    if (dim == 0) extent[0] = std::min(length, tensor.shape[0] - to[0]);
    if (extent[dim] > 0) tensor.pieces.push_back({source, to, from, extent});
  }
}

void check_shape(const RankFiles& files, const std::string& source, const plan::ParameterSpec& spec, int tp) {
  std::vector<std::int64_t> wanted = spec.shape;
  if (spec.split_dim >= 0) wanted[static_cast<std::size_t>(spec.split_dim)] /= tp;
  const std::vector<std::int64_t>* const got = files.shape(source);
  if (got == nullptr || *got != wanted)
    throw ConfigError(rule_got_fix(
        concat(files.name(), ": \"", printable(source), "\" must be a ", tp, "th part of \"", spec.name, "\"."),
        got == nullptr ? "no such tensor" : "another shape than the arguments say"));
}

void check_tp(const plan::ModelShape& shape, int tp, const std::string& folder) {
  const plan::Experts none{};
  const plan::Experts& experts = shape.experts ? *shape.experts : none;
  for (const auto& [what, size] : {std::pair<const char*, std::int64_t>{"padded_vocab_size", shape.padded_vocab},
                                   {"num_query_groups", shape.groups()},
                                   {"ffn_hidden_size", shape.ffn_hidden},
                                   {"moe_ffn_hidden_size", experts.expert.width},
                                   {"moe_shared_expert_intermediate_size", experts.shared_width}})
    if (size % tp != 0)
      throw ConfigError(
          rule_got_fix(concat(folder, ": args.", what, " must divide by the ranks of tensor parallelism."),
                       concat(size, " and ", tp)));
}

/// Our parameters made of the ranks' tensors, whose names behind the part's prefix begin with `infix`; `ours`: what
/// theirs are called.
template <class Name>
void add_to(families::Mapping& mapping, const RankFiles& files, const RankGrid& grid, const plan::ModelShape& shape,
            const std::vector<plan::ParameterSpec>& specs, const std::map<std::string, TensorLocation>& places,
            const std::string& infix, const Name& ours) {
  for (const plan::ParameterSpec& spec : specs) {
    const auto place = places.find(spec.name);
    if (place == places.end())
      throw ConfigError(rule_got_fix(concat(files.name(), ": must hold \"", spec.name, "\"."), "no such tensor"));
    families::MappedTensor& tensor = mapping[ours(spec.name)];
    tensor.shape = checkpoint::true_shape(spec, shape);
    for (int rank = 0; rank < grid.tp; ++rank) {
      const auto& parts = files.parts(rank, place->second.pp);
      const std::string own = is_expert_bias(spec.name) ? "" : infix;  // which has neither masters nor a state
      const std::string source =
          parts.size() > place->second.chunk ? parts[place->second.chunk].prefix + own + place->second.name : "";
      const plan::ParameterSpec stored = split_as_stored(spec, files.shape(source), grid.tp);
      check_shape(files, source, stored, grid.tp);
      add_pieces(stored, shape.gated, grid.tp, rank, source, tensor);
    }
  }
}

/// Of a tensor's largest number. Ranks of Megatron-LM each compute the gradient of what all have whole, and drift apart
/// by its rounding; files of two runs are further apart.
constexpr double kDrift = 0.01;

/// Throws ConfigError where ranks hold other numbers of what all of them have whole, or a copy of the word embedding
/// other numbers than the embedding.
void check_copies(const RankFiles& files, const RankGrid& grid, const plan::ModelShape& shape,
                  const std::map<std::string, TensorLocation>& places) {
  constexpr const char* kFirst = "let Megatron-LM save it in the format torch_dist, which keeps the first of them";
  const auto check = [&](const std::string& first, const std::string& copy) {
    if (files.shape(first) == nullptr || files.shape(copy) == nullptr || hold_the_same(files, first, copy, kDrift))
      return;
    throw ConfigError(rule_got_fix(
        concat(files.name(), ": \"", printable(copy), "\" must hold what \"", printable(first), "\" does."),
        "other numbers", kFirst));
  };
  for (const plan::ParameterSpec& spec : plan::model_parameters(shape, 1, 0)) {
    const auto place = places.find(spec.name);
    if (place == places.end() || spec.split_dim >= 0) continue;
    const auto source = [&](int rank) {
      const auto& parts = files.parts(rank, place->second.pp);
      return parts.size() > place->second.chunk ? parts[place->second.chunk].prefix + place->second.name : "";
    };
    const std::string first = source(0);
    if (split_as_stored(spec, files.shape(first), grid.tp).split_dim >= 0) continue;
    for (int rank = 1; rank < grid.tp; ++rank) check(first, source(rank));
  }
  for (const auto& [rank, folder] : grid.folders)
    for (const RankFiles::ModelChunk& part : files.parts(rank.first, rank.second))
      for (const std::string& copy : part.tied_copies)
        check(files.parts(rank.first, 0).front().prefix + plan::kWordEmbedding, copy);
}

/// An iteration's folder, opened.
struct OpenedRanks {
  RankGrid grid;
  std::shared_ptr<RankFiles> files;
  const PickleNode* args;
  config::ModelConfig model;

  const TorchFile& first() const { return files->file(0, 0); }
};

/// What the tensors of all pipeline ranks say together.
KindOfTensors kind_of(const RankFiles& files, const RankGrid& grid) {
  KindOfTensors kind;
  for (int pp = 0; pp < grid.pp; ++pp)
    for (const RankFiles::ModelChunk& part : files.parts(0, pp)) {
      for (const auto& [stack, layers] : part.num_layers) {
        if (stack == "encoder.layers.")
          kind.encoder = true;
        else
          kind.decoder_layers += layers;
      }
      kind.binary_head = kind.binary_head || part.tensors.contains("binary_head.weight");
      const auto* const types = files.shape(part.prefix + "embedding.tokentype_embeddings.weight");
      if (types != nullptr && !types->empty()) kind.token_types = types->at(0);
    }
  return kind;
}

/// Throws ConfigError unless a rank's file is of the same run as the first, of the network `model`, and of the same
/// step.
void check_same_run(const TorchFile& first, const TorchFile& file, const config::ModelConfig& model,
                    const KindOfTensors& kind) {
  const auto refuse = [&](const std::string& what, const std::string& got, const std::string& wanted) {
    throw ConfigError(rule_got_fix(concat(file.name(), ": ", what, " must be that of ", first.name(), "."),
                                   concat(got, ", and ", wanted, " there"),
                                   "copy the folder again; the files of all ranks are of one checkpoint"));
  };
  const PickleNode &args = arguments_of(file), &first_args = arguments_of(first);
  const auto count_text = [](const std::optional<std::int64_t>& count) { return count ? concat(*count) : "none"; };
  const auto check = [&](const char* name, const PickleNode& ours, const PickleNode& theirs) {
    const std::string got = count_text(count_of(file, &ours, name)),
                      wanted = count_text(count_of(first, &theirs, name));
    if (got != wanted) refuse(name, got, wanted);
  };
  check("iteration", file.root(), first.root());
  for (const char* name : {"consumed_train_samples", "padded_vocab_size"}) check(name, args, first_args);
  config::RunConfig got, wanted;
  got.model = model_of_arguments(file.values(), args, kind, file.name());
  wanted.model = model;
  const config::Fields of_got = config::fields_of(got), of_wanted = config::fields_of(wanted);
  for (std::size_t i = 0; i < of_got.fields.size(); ++i) {
    const std::string value = config::toml_value(of_got.fields[i].value),
                      first_value = config::toml_value(of_wanted.fields[i].value);
    if (value != first_value) refuse(of_got.fields[i].path, value, first_value);
  }
}

/// The network; the arguments are the same in all files: they are read from the first.
OpenedRanks open_ranks(const fs::path& found, RankGrid grid) {
  auto files = std::make_shared<RankFiles>(found, grid);
  const TorchFile& first = files->file(0, 0);
  const PickleNode& args = arguments_of(first);
  const KindOfTensors kind = kind_of(*files, grid);
  config::ModelConfig model = model_of_arguments(first.values(), args, kind, first.name());
  for (const auto& [rank, folder] : grid.folders)
    if (rank != std::pair(0, 0)) check_same_run(first, files->file(rank.first, rank.second), model, kind);
  families::check_heads(model, first.name());
  const Arguments saved(first.values(), args, first.name());
  constexpr std::int64_t kMaxParallel = 1 << 16;
  const std::int64_t tp = saved.size("tensor_model_parallel_size", kMaxParallel, grid.tp),
                     ep = saved.size("expert_model_parallel_size", kMaxParallel, 1),
                     etp = saved.size("expert_tensor_parallel_size", kMaxParallel, tp);
  if (model.num_experts > 0 && (ep != 1 || etp != tp))
    saved.refuse(ep != 1 ? "expert_model_parallel_size" : "expert_tensor_parallel_size",
                 concat(ep != 1 ? 1 : tp, " in files of ranks; the format torch_dist keeps experts of any layout"),
                 concat(ep != 1 ? ep : etp));
  return {std::move(grid), std::move(files), &args, std::move(model)};
}

std::int64_t padded_vocabulary(const OpenedRanks& opened) {
  return opened.first().values().find(*opened.args, "padded_vocab_size")->integer;
}

/// The sizes of the network `model`, whose matrices have the rows that are stored.
plan::ModelShape stored_shape(const OpenedRanks& opened, const config::ModelConfig& model) {
  plan::ModelShape shape = families::shape_of(model);
  shape.padded_vocab = padded_vocabulary(opened);
  const std::string folder = opened.files->name();
  check_tp(shape, opened.grid.tp, folder);
  if (shape.num_layers > static_cast<std::int64_t>(opened.files->tensors().size()))
    throw ConfigError(rule_got_fix(concat(folder, ": must hold args.num_layers layers, ", shape.num_layers, "."),
                                   concat(opened.files->tensors().size(), " tensors")));
  const auto layers = static_cast<std::int64_t>(shape.expert_layers().size()),
             tensors = static_cast<std::int64_t>(opened.files->tensors().size());
  if (shape.experts && shape.experts->count * layers > tensors)
    throw ConfigError(
        rule_got_fix(concat(folder, ": must hold args.num_experts experts of each layer, ", shape.experts->count, "."),
                     concat(tensors, " tensors, and ", layers, " layers with experts")));
  return shape;
}

/// Throws ConfigError for tensors that the model does not have.
void check_all_used(const RankFiles& files, const std::map<std::string, TensorLocation>& places,
                    const families::Mapping& mapping) {
  for (const auto& [name, place] : places)
    if (!mapping.contains(name))
      throw ConfigError(rule_got_fix(concat(files.name(), ": the weights must be those of the saved arguments."),
                                     concat("\"", printable(name), "\" together with them")));
}

/// Weights and state of a run. What no optimizer has a state of has 0.
class RunSource final : public MappedSource {
 public:
  RunSource(std::shared_ptr<const checkpoint::WeightSource> raw, families::Mapping mapping, const TrainingState& state)
      : MappedSource(std::move(raw), std::move(mapping), Extent::AtLeast) {
    for (const std::string& kind : state.kinds)
      shares_[state_name(kind, "")] = written_share(state.recipe.optimizer, kind);
  }
  std::vector<std::string> tensors() const override {
    std::vector<std::string> names = MappedSource::tensors();
    std::erase_if(names, [](const std::string& name) { return name.starts_with("optimizer."); });
    return names;
  }
  void read(const std::string& tensor, const checkpoint::Box& box, const at::Tensor& into) const override {
    if (is_expert_bias(tensor) && tensor.starts_with("optimizer.")) {
      into.zero_();
      return;
    }
    MappedSource::read(tensor, box, into);
    for (const auto& [prefix, share] : shares_)
      if (share != 1 && tensor.starts_with(prefix)) into.div_(share);
  }

 private:
  std::map<std::string, double> shares_;  ///< by what names of state begin with
};

/// The last of several, which is Adam: Muon there does not count its steps.
const PickleNode* last_optimizer(const TorchFile& file) {
  const PickleNode* const optimizer = file.values().find(file.root(), "optimizer");
  if (optimizer == nullptr || optimizer->kind != PickleNode::Kind::List || optimizer->items.empty()) return optimizer;
  return &file.values()[optimizer->items.back()];
}

/// The iteration at which a run stood, by a file of one rank; 0: the weights are alone.
std::int64_t iteration_in(const fs::path& found, const TorchFile& file) {
  const PickleNode* const args = file.values().find(file.root(), "args");
  if (found.filename() == "release" || args == nullptr || !count_of(file, args, "consumed_train_samples")) return 0;
  return count_of(file, &file.root(), "iteration").value_or(0);
}

bool is_resumable(const fs::path& folder) {
  const fs::path found = find_megatron(folder);
  RankGrid first = read_grid(found);
  const RankFiles files(found, {.tp = 1, .pp = 1, .folders = {*first.folders.begin()}});
  return iteration_in(found, files.file(0, 0)) > 0;
}

std::optional<TrainingState> training_of(const fs::path& folder, bool with_optimizer) {
  const fs::path found = find_megatron(folder);
  OpenedRanks opened = open_ranks(found, read_grid(found));
  const TorchFile& first = opened.first();
  const std::int64_t iteration = iteration_in(found, first);
  if (iteration < 1) return std::nullopt;
  opened.model.vocab_size = padded_vocabulary(opened);  // whose rows of padding are in the softmax there
  TrainingState state = counters_of(first, *opened.args, opened.model, iteration);
  const plan::ModelShape shape = stored_shape(opened, opened.model);
  const auto places = find_places(*opened.files, opened.grid);
  RankState kept;
  if (with_optimizer) kept = add_state(*opened.files, opened.grid, state.recipe.optimizer);
  families::Mapping mapping;
  const std::vector<plan::ParameterSpec> specs = plan::model_parameters(shape, 1, 0);
  const auto add = [&](const std::vector<plan::ParameterSpec>& of, const std::string& infix, const auto& ours) {
    add_to(mapping, *opened.files, opened.grid, shape, of, places, infix, ours);
  };
  add(specs, kept.masters ? kMasterInfix : "", [](const std::string& name) { return name; });
  check_all_used(*opened.files, places, mapping);
  check_copies(*opened.files, opened.grid, shape, places);
  for (const std::string& kind : kept.kinds) {
    std::vector<plan::ParameterSpec> with_kind = specs;
    std::erase_if(with_kind, [&](const plan::ParameterSpec& spec) {
      return !keeps_state(state.recipe.optimizer, kind, spec.is_layer_matrix());
    });
    add(with_kind, state_infix(kind), [&](const std::string& name) { return state_name(kind, name); });
  }
  state.kinds = kept.kinds;
  const PickleNode* const optimizer = last_optimizer(first);
  state.optimizer_steps = optimizer_steps(first, optimizer).value_or(iteration);
  if (optimizer != nullptr) state.loss_scale = loss_scale_of(first, first.values().find(*optimizer, "grad_scaler"));
  state.tensors = std::make_shared<RunSource>(opened.files, std::move(mapping), state);
  return state;
}

}  // namespace

fs::path find_megatron(const fs::path& folder) {
  const auto has_ranks = [](const fs::path& path) {
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(path, error))
      if (entry.path().filename().string().rfind("mp_rank_", 0) == 0) return true;
    return false;
  };
  if (has_ranks(folder)) return folder;
  const fs::path latest = latest_megatron(folder);
  if (latest.empty()) return {};
  if (!has_ranks(latest))
    throw ConfigError(
        rule_got_fix(concat(latest.string(),
                            ": must hold the mp_rank_ folders of a checkpoint in the format torch, or the .metadata "
                            "and common.pt of one in the format torch_dist."),
                     "neither", "copy the whole folder again"));
  return latest;
}

fs::path latest_megatron(const fs::path& folder) {
  return checkpoint::has_latest(folder) ? fs::path() : named_iteration(folder);
}

fs::path named_iteration(const fs::path& folder) {
  if (!fs::is_regular_file(folder / kLatest)) return {};
  std::string name = read_file(folder / kLatest, 64);
  name.erase(name.find_last_not_of(" \r\n\t") + 1);
  if (name != "release") {
    long number = -1;
    const auto result = std::from_chars(name.data(), name.data() + name.size(), number);
    if (result.ec != std::errc() || result.ptr != name.data() + name.size() || number < 0)
      throw ConfigError(
          rule_got_fix(concat((folder / kLatest).string(), ": must hold an iteration, or release."), "something else"));
    name = fmt::format("iter_{:07}", number);
  }
  return folder / name;
}

std::unique_ptr<checkpoint::WeightSource> open_megatron(const fs::path& folder) {
  const fs::path found = find_megatron(folder);
  const OpenedRanks opened = open_ranks(found, read_grid(found));
  const plan::ModelShape shape = stored_shape(opened, opened.model);
  const auto places = find_places(*opened.files, opened.grid);
  families::Mapping mapping;
  add_to(mapping, *opened.files, opened.grid, shape, plan::model_parameters(shape, 1, 0), places, "",
         [](const std::string& name) { return name; });
  check_all_used(*opened.files, places, mapping);
  check_copies(*opened.files, opened.grid, shape, places);
  return std::make_unique<MappedSource>(opened.files, std::move(mapping), MappedSource::Extent::AtLeast);
}

config::ModelConfig megatron_model(const fs::path& folder) {
  const fs::path found = find_megatron(folder);
  return open_ranks(found, read_grid(found).of_first_tp()).model;
}

WeightFormat megatron_format() {
  return {.words = families::kMegatronWords,
          .detect = [](const fs::path& folder) { return !find_megatron(folder).empty(); },
          .model = megatron_model,
          .config =
              [](const fs::path& folder) {
                families::FolderConfig config;
                config.model = megatron_model(folder);
                config.family = families::find_family(config.model);
                return config;
              },
          .weights = open_megatron,
          .training = training_of,
          .resumable = is_resumable};
}

}  // namespace megatron::interchange
