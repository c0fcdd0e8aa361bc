#include "megatron/interchange/megatron_lm/megatron_torch.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <list>
#include <map>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/base/text/format.h"
#include "megatron/base/text/printable.h"
#include "megatron/interchange/formats.h"
#include "megatron/interchange/hugging_face/hf_config.h"
#include "megatron/interchange/hugging_face/hf_family.h"
#include "megatron/interchange/mapped_source.h"
#include "megatron/interchange/megatron_lm/torch_file.h"
#include "megatron/plan/parameters/parameters.h"

namespace megatron::interchange {
namespace fs = std::filesystem;
namespace {

using Kind = PickleNode::Kind;

constexpr const char* kLatest = "latest_checkpointed_iteration.txt";
constexpr int kMaxDepth = 8;
constexpr std::size_t kMaxParts = 64;  // more than virtual stages of a rank
constexpr std::size_t kMaxTensors = 1 << 20, kMaxNameBytes = 512;

/// "00_001", "00": the numbers between the underscores, as many as 4 digits each.
std::vector<int> numbers_of(std::string_view text) {
  std::vector<int> numbers;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('_'), text.size());
    int number = -1;
    const auto result = std::from_chars(text.data(), text.data() + end, number);
    if (end == 0 || end > 4 || result.ec != std::errc() || result.ptr != text.data() + end || number < 0) return {};
    numbers.push_back(number);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return numbers;
}

/// The files of a checkpoint by rank; every combination of the two is there.
struct Grid {
  int tp = 0, pp = 0;
  std::map<std::pair<int, int>, fs::path> files;  // by (tp, pp)
};

Grid read_grid(const fs::path& folder) {
  Grid grid;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    constexpr std::string_view kPrefix = "mp_rank_";
    if (name.rfind(kPrefix, 0) != 0) continue;
    const std::vector<int> rank = numbers_of(std::string_view(name).substr(kPrefix.size()));
    if (rank.empty() || rank.size() > 2)
      throw ConfigError(rule_got_fix(
          concat(folder.string(), ": a rank's folder must be mp_rank_TT or mp_rank_TT_PPP (no expert parallelism)."),
          name));
    const bool is_split = !fs::exists(entry.path() / "model_optim_rng.pt");  // the optimizer in a file of its own
    grid.files[{rank[0], rank.size() > 1 ? rank[1] : 0}] =
        entry.path() / (is_split ? "model_rng.pt" : "model_optim_rng.pt");
  }
  for (const auto& [rank, path] : grid.files) {
    grid.tp = std::max(grid.tp, rank.first + 1);
    grid.pp = std::max(grid.pp, rank.second + 1);
  }
  if (grid.files.size() != static_cast<std::size_t>(grid.tp) * static_cast<std::size_t>(grid.pp))
    throw ConfigError(
        rule_got_fix(concat(folder.string(), ": must hold the folders of ", grid.tp, " x ", grid.pp, " ranks."),
                     concat(grid.files.size(), " of them")));
  return grid;
}

const PickleNode& arguments_of(const TorchFile& file) {
  const PickleNode* const args = file.values().find(file.root(), "args");
  if (args == nullptr || args->kind != Kind::Dict)
    throw ConfigError(rule_got_fix(concat(file.name(), ": must hold Megatron-LM's arguments, \"args\"."), "none"));
  const PickleNode* const version = file.values().find(file.root(), "checkpoint_version");
  const double number = version == nullptr               ? 0
                        : version->kind == Kind::Float   ? version->number
                        : version->kind == Kind::Integer ? static_cast<double>(version->integer)
                                                         : 0;
  if (number < 2)
    throw ConfigError(rule_got_fix(concat(file.name(),
                                          ": must have checkpoint_version 2 or later, whose rows of the "
                                          "attention's matrices are in today's order."),
                                   concat("version ", number), "load and save it with Megatron-LM"));
  return *args;
}

/// The tensors of all ranks' files: "mp_rank_00_001/model0/decoder.layers.0.…", by their own names, layers counted
/// within the part of the model.
class RankFiles : public checkpoint::WeightSource {
 public:
  /// One part of the model: a pipeline stage, or one of several on a rank.
  struct ModelChunk {
    std::string prefix;             // of its names here
    std::set<std::string> tensors;  // ours, within the part
    std::int64_t num_layers = 0;
  };

  RankFiles(fs::path folder, const Grid& grid, bool tied) : folder_(std::move(folder)), tied_(tied) {
    for (const auto& [rank, path] : grid.files) add_file(rank.first, rank.second, path);
  }

  /// By virtual stage and tensor-parallel rank: part `chunk` of pipeline rank `pp`.
  const std::vector<ModelChunk>& parts(int tp, int pp) const { return parts_.at({tp, pp}); }

  std::string name() const override { return folder_.string(); }
  std::vector<std::string> tensors() const override {
    std::vector<std::string> names;
    for (const auto& [name, place] : places_) names.push_back(name);
    return names;
  }
  const std::vector<std::int64_t>* shape(const std::string& tensor) const override {
    const auto found = places_.find(tensor);
    return found == places_.end() ? nullptr : &found->second.shape;
  }
  std::string dtype(const std::string& tensor) const override { return places_.at(tensor).dtype; }
  void read(const std::string& tensor, const checkpoint::Box& box, const at::Tensor& into) const override {
    const StoredTensor& stored = places_.at(tensor);
    if (!checkpoint::inside(box, stored.shape))
      throw std::logic_error(concat("a slice that lies outside of \"", tensor, "\""));
    read_stored(stored, box, into, concat(name(), ": \"", printable(tensor), "\""));
  }

 private:
  void add_file(int tp, int pp, const fs::path& path) {
    const TorchFile& file = files_.emplace_back(path);
    std::vector<ModelChunk>& parts = parts_[{tp, pp}];
    const std::string rank = path.parent_path().filename().string() + "/";
    if (const PickleNode* const model = file.values().find(file.root(), "model"); model != nullptr) {
      add_part(file, *model, rank + "model/", parts);
      return;
    }
    for (const PickleNode* model;
         (model = file.values().find(file.root(), concat("model", parts.size()))) != nullptr;) {
      if (parts.size() == kMaxParts)
        throw ConfigError(rule_got_fix(concat(file.name(), ": must hold at most ", kMaxParts, " parts of a model."),
                                       concat("\"model", kMaxParts, "\" too")));
      add_part(file, *model, concat(rank, "model", parts.size(), "/"), parts);
    }
    if (parts.empty())
      throw ConfigError(rule_got_fix(concat(file.name(), ": must hold the weights, \"model\" or \"model0\"."), "none"));
  }

  void add_part(const TorchFile& file, const PickleNode& model, const std::string& prefix,
                std::vector<ModelChunk>& parts) {
    ModelChunk part{.prefix = prefix, .tensors = {}};
    add_tensors(file, model, "", part, 0);
    std::set<std::string> layers;
    for (const std::string& name : part.tensors)
      if (name.rfind("decoder.layers.", 0) == 0) layers.insert(name.substr(15, name.find('.', 15) - 15));
    part.num_layers = static_cast<std::int64_t>(layers.size());
    parts.push_back(std::move(part));
  }

  void add_tensors(const TorchFile& file, const PickleNode& dict, const std::string& name, ModelChunk& part,
                   int depth) {
    if (dict.kind == Kind::Tensor) return add_tensor(file, dict, name, part);
    if (dict.kind != Kind::Dict) return;
    for (std::size_t i = 0; i + 1 < dict.items.size(); i += 2) {
      const PickleNode& key = file.values()[dict.items[i]];
      if (key.kind != Kind::Text || name.size() + key.text.size() > kMaxNameBytes || depth == kMaxDepth ||
          ++num_visited_ > kMaxTensors)
        throw ConfigError(rule_got_fix(concat(file.name(), ": the weights must be dictionaries of named tensors."),
                                       "other keys, or too many or too deep"));
      add_tensors(file, file.values()[dict.items[i + 1]], name.empty() ? key.text : name + "." + key.text, part,
                  depth + 1);
    }
  }

  void add_tensor(const TorchFile& file, const PickleNode& node, const std::string& theirs, ModelChunk& part) {
    const std::string ours = our_name(theirs, tied_, file.name());
    if (ours.empty()) return;
    if (!part.tensors.insert(ours).second)
      throw ConfigError(rule_got_fix(concat(file.name(), ": must hold each tensor once."),
                                     concat("\"", printable(ours), "\" under two names")));
    places_[part.prefix + ours] = file.tensor(node, theirs);
  }

  fs::path folder_;
  bool tied_;
  std::list<TorchFile> files_;  // whose places stay where they are
  std::map<std::pair<int, int>, std::vector<ModelChunk>> parts_;
  std::map<std::string, StoredTensor> places_;
  std::size_t num_visited_ = 0;
};

/// Which part holds a tensor, and its name there.
struct TensorLocation {
  int pp = 0;
  std::size_t chunk = 0;
  std::string name;
};

/// The places of all tensors of the model: its parts in their order are chunk 0 of each pipeline rank, then chunk 1, …
std::map<std::string, TensorLocation> find_places(const RankFiles& files, const Grid& grid) {
  std::map<std::string, TensorLocation> places;
  const std::size_t chunks = files.parts(0, 0).size();
  std::int64_t first_layer = 0;
  for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
    for (int pp = 0; pp < grid.pp; ++pp) {
      const auto& parts = files.parts(0, pp);
      if (parts.size() != chunks)
        throw ConfigError(rule_got_fix(concat(files.name(), ": all pipeline ranks must have as many parts."),
                                       concat(chunks, " on the first, ", parts.size(), " on rank ", pp)));
      for (const std::string& name : parts[chunk].tensors) {
        std::string global = name;
        if (name.rfind("decoder.layers.", 0) == 0) {
          std::int64_t layer = -1;
          const std::size_t dot = name.find('.', 15);
          std::from_chars(name.data() + 15, name.data() + dot, layer);
          if (layer < 0 || layer >= parts[chunk].num_layers)
            throw ConfigError(rule_got_fix(concat(files.name(), ": the layers of a part must be counted from 0 to ",
                                                  parts[chunk].num_layers - 1, "."),
                                           concat("\"", printable(name), "\"")));
          global = concat("decoder.layers.", first_layer + layer, name.substr(dot));
        }
        places[global] = {pp, chunk, name};
      }
      first_layer += parts[chunk].num_layers;
    }
  }
  return places;
}

/// Adds what rank `rank` of `tp` holds of one parameter.
void add_pieces(const plan::ParameterSpec& spec, bool gated, int tp, int rank, const std::string& source,
                MappedTensor& tensor) {
  std::vector<std::int64_t> origin(spec.shape.size(), 0), extent = spec.shape;
  if (spec.split_dim < 0) {
    if (rank == 0) tensor.pieces.push_back({source, origin, origin, extent});
    return;
  }
  const auto dim = static_cast<std::size_t>(spec.split_dim);
  const std::int64_t halves = gated && spec.name.find("mlp.linear_fc1.") != std::string::npos ? 2 : 1;
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
  for (const auto& [what, size] : {std::pair<const char*, std::int64_t>{"padded_vocab_size", shape.padded_vocab},
                                   {"num_query_groups", shape.groups()},
                                   {"ffn_hidden_size", shape.ffn_hidden}})
    if (size % tp != 0)
      throw ConfigError(
          rule_got_fix(concat(folder, ": args.", what, " must divide by the ranks of tensor parallelism."),
                       concat(size, " and ", tp)));
}

Mapping mapping_of(const RankFiles& files, const Grid& grid, const plan::ModelShape& shape) {
  const auto places = find_places(files, grid);
  Mapping mapping;
  for (const plan::ParameterSpec& spec : plan::model_parameters(shape, 1, 0)) {
    const auto place = places.find(spec.name);
    if (place == places.end())
      throw ConfigError(rule_got_fix(concat(files.name(), ": must hold \"", spec.name, "\"."), "no such tensor"));
    MappedTensor& tensor = mapping[spec.name];
    tensor.shape = spec.shape;
    if (spec.shape[0] == shape.padded_vocab &&
        (spec.name == "embedding.word_embeddings.weight" || spec.name == "output_layer.weight"))
      tensor.shape[0] = shape.vocab;
    for (int rank = 0; rank < grid.tp; ++rank) {
      const auto& parts = files.parts(rank, place->second.pp);
      const std::string source =
          parts.size() > place->second.chunk ? parts[place->second.chunk].prefix + place->second.name : "";
      check_shape(files, source, spec, grid.tp);
      add_pieces(spec, shape.gated, grid.tp, rank, source, tensor);
    }
  }
  for (const auto& [name, place] : places)
    if (!mapping.contains(name))
      throw ConfigError(rule_got_fix(concat(files.name(), ": the weights must be those of the saved arguments."),
                                     concat("\"", printable(name), "\" together with them")));
  return mapping;
}

/// The arguments are the same in all files; they are read from the first.
config::ModelConfig model_of(const Grid& grid) {
  const TorchFile first(grid.files.begin()->second);
  config::ModelConfig model = model_of_arguments(first.values(), arguments_of(first), first.name());
  check_heads(model, first.name());
  return model;
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
  const Grid grid = read_grid(found);
  const config::ModelConfig model = model_of(grid);
  plan::ModelShape shape = shape_of(model);
  auto files = std::make_shared<RankFiles>(found, grid, shape.tied_output);
  const TorchFile first(grid.files.begin()->second);
  shape.padded_vocab = first.values().find(arguments_of(first), "padded_vocab_size")->integer;
  check_tp(shape, grid.tp, found.string());
  if (shape.num_layers > static_cast<std::int64_t>(files->tensors().size()))
    throw ConfigError(
        rule_got_fix(concat(found.string(), ": must hold args.num_layers layers, ", shape.num_layers, "."),
                     concat(files->tensors().size(), " tensors")));
  Mapping mapping = mapping_of(*files, grid, shape);
  return std::make_unique<MappedSource>(std::move(files), std::move(mapping), MappedSource::Extent::AtLeast);
}

config::ModelConfig megatron_model(const fs::path& folder) { return model_of(read_grid(find_megatron(folder))); }

WeightFormat megatron_format() {
  return {
      .name = "megatron-lm",
      .holder = "one of Megatron-LM's checkpoints (latest_checkpointed_iteration.txt, mp_rank_00/model_optim_rng.pt)",
      .models = "checkpoints of format torch: GPT, any tensor and pipeline parallelism",
      .detect = [](const fs::path& folder) { return !find_megatron(folder).empty(); },
      .model = megatron_model,
      .config =
          [](const fs::path& folder) {
            FolderConfig config;
            config.model = megatron_model(folder);
            config.family = &family_of(config.model);
            return config;
          },
      .weights = open_megatron};
}

}  // namespace megatron::interchange
