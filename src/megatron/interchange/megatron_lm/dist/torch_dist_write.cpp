#include "megatron/interchange/megatron_lm/dist/torch_dist_write.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/files/atomic_folder.h"
#include "megatron/base/files/file.h"
#include "megatron/base/text/format.h"
#include "megatron/checkpoint/files/dtypes.h"
#include "megatron/interchange/megatron_lm/dist/common_file.h"
#include "megatron/interchange/megatron_lm/dist/dcp_metadata.h"
#include "megatron/interchange/megatron_lm/dist/dist_names.h"
#include "megatron/interchange/megatron_lm/dist/padded_source.h"
#include "megatron/interchange/megatron_lm/megatron_names.h"
#include "megatron/interchange/megatron_lm/pickle_writer.h"
#include "megatron/interchange/stored_tensor.h"
#include "megatron/interchange/training_state.h"
#include "megatron/plan/parameters/output_bias.h"

namespace megatron::interchange {
namespace fs = std::filesystem;
namespace {

using Sizes = std::vector<std::int64_t>;

constexpr const char* kFile = "__0_0.distcp";
constexpr const char* kModule = "torch.distributed.checkpoint.metadata";
constexpr std::int64_t kBytesAtOnce = std::int64_t{64} << 20;  // of one archive

/// torch's names of a dtype and of its storages.
std::pair<const char*, const char*> torch_names(at::ScalarType type) {
  switch (type) {
    case at::kBFloat16:
      return {"bfloat16", "BFloat16Storage"};
    case at::kHalf:
      return {"float16", "HalfStorage"};
    case at::kDouble:
      return {"float64", "DoubleStorage"};
    default:
      return {"float32", "FloatStorage"};
  }
}

class DcpWriter {
 public:
  explicit DcpWriter(const fs::path& folder) : file_(folder / kFile) {}

  /// The tensor `ours` of `source` times `factor`, as `type`, under a name of Megatron-Core.
  void add(const checkpoint::WeightSource& source, const std::string& ours, const DistName& theirs, at::ScalarType type,
           double factor = 1) {
    const Sizes& shape = *source.shape(ours);
    Entry& entry = entries_[theirs.name];
    entry.dtype = torch_names(type).first;
    entry.shape = theirs.extents;
    entry.shape.insert(entry.shape.end(), shape.begin(), shape.end());
    std::int64_t row = static_cast<std::int64_t>(c10::elementSize(type));
    for (std::size_t d = 1; d < shape.size(); ++d) row *= shape[d];
    const std::int64_t step = std::clamp<std::int64_t>(kBytesAtOnce / std::max<std::int64_t>(row, 1), 1, shape.at(0));
    for (std::int64_t first = 0; first < shape[0]; first += step) {
      checkpoint::Box box{Sizes(shape.size(), 0), shape};
      box.offset[0] = first;
      box.shape[0] = std::min(step, shape[0] - first);
      const at::Tensor values = at::empty(box.shape, type);
      source.read(ours, box, values);
      if (factor != 1) values.mul_(factor);
      box.offset.insert(box.offset.begin(), theirs.index.begin(), theirs.index.end());
      box.shape.insert(box.shape.begin(), theirs.index.size(), 1);
      const std::string archive =
          saved_tensor(torch_names(type).second, box.shape,
                       {static_cast<const char*>(values.const_data_ptr()), static_cast<std::size_t>(values.nbytes())});
      entry.chunks.push_back({box, write(archive)});
    }
  }
  /// What is added under `known`, a name of its own or of another alias, has this name too: the bytes are there once.
  void alias(const std::string& known, const std::string& name) { aliases_[name] = known; }
  /// An object that is [None].
  void add_nothing(const std::string& name) {
    if (nothing_.size == 0) {
      PickleWriter pickle;
      pickle.begin_list();
      pickle.none();
      pickle.end_list();
      nothing_ = write(saved_value(pickle.take()));
    }
    objects_.push_back(name);
  }

  /// The pickle of the index; the file of tensors is complete.
  std::string finish() {
    file_.commit();
    for (const auto& [name, known] : aliases_) {
      std::string own = known;
      for (auto next = aliases_.find(own); next != aliases_.end(); next = aliases_.find(own)) own = next->second;
      if (const auto found = entries_.find(own); found != entries_.end()) entries_[name] = found->second;
    }
    PickleWriter pickle;
    pickle.begin_object(kModule, "Metadata");
    pickle.begin_dict();
    pickle.text("state_dict_metadata");
    pickle.begin_dict();
    for (const auto& [name, entry] : entries_) write_tensor(pickle, name, entry);
    for (const std::string& name : objects_) {
      pickle.text(name);
      pickle.begin_object(kModule, "BytesStorageMetadata");
    }
    pickle.end_dict();
    pickle.null_entry("planner_data");
    pickle.text("storage_data");
    pickle.begin_dict();
    for (const auto& [name, entry] : entries_)
      for (const DcpChunk& chunk : entry.chunks) write_place(pickle, name, &chunk.box.offset, chunk.place);
    for (const std::string& name : objects_) write_place(pickle, name, nullptr, nothing_);
    pickle.end_dict();
    pickle.null_entry("storage_meta");
    pickle.end_dict();
    pickle.end_object();
    return pickle.take();
  }

 private:
  struct Entry {
    const char* dtype = "";
    Sizes shape;
    std::vector<DcpChunk> chunks;
  };

  DcpPlace write(const std::string& bytes) {
    DcpPlace place{kFile, file_.size(), bytes.size()};
    file_.write(bytes);
    return place;
  }

  static void write_tensor(PickleWriter& pickle, const std::string& name, const Entry& entry) {
    pickle.text(name);
    pickle.begin_object(kModule, "TensorStorageMetadata");
    pickle.begin_dict();
    pickle.text("properties");
    pickle.begin_object(kModule, "TensorProperties");
    pickle.begin_tuple();
    pickle.name("torch", entry.dtype);
    pickle.name("torch.serialization", "_get_layout");
    pickle.begin_tuple();
    pickle.text("torch.strided");
    pickle.end_tuple();
    pickle.call();
    pickle.boolean(false);  // requires_grad
    pickle.name(kModule, "_MEM_FORMAT_ENCODING");
    pickle.begin_tuple();
    pickle.integer(0);
    pickle.end_tuple();
    pickle.call();
    pickle.boolean(false);  // pinned
    pickle.end_tuple();
    pickle.end_object();
    pickle.text("size");
    pickle.size(entry.shape);
    pickle.text("chunks");
    pickle.begin_list();
    for (const DcpChunk& chunk : entry.chunks) {
      pickle.begin_object(kModule, "ChunkStorageMetadata");
      pickle.begin_dict();
      pickle.text("offsets");
      pickle.size(chunk.box.offset);
      pickle.text("sizes");
      pickle.size(chunk.box.shape);
      pickle.end_dict();
      pickle.end_object();
    }
    pickle.end_list();
    pickle.end_dict();
    pickle.end_object();
  }

  static void write_place(PickleWriter& pickle, const std::string& name, const Sizes* offset, const DcpPlace& place) {
    pickle.begin_object(kModule, "MetadataIndex");
    pickle.begin_dict();
    pickle.entry("fqn", name);
    pickle.text("offset");
    if (offset == nullptr)
      pickle.none();
    else
      pickle.size(*offset);
    pickle.null_entry("index");
    pickle.end_dict();
    pickle.end_object();
    pickle.begin_object("torch.distributed.checkpoint.filesystem", "_StorageInfo");
    pickle.begin_dict();
    pickle.entry("relative_path", place.file);
    pickle.entry("offset", static_cast<std::int64_t>(place.offset));
    pickle.entry("length", static_cast<std::int64_t>(place.size));
    pickle.end_dict();
    pickle.end_object();
  }

  AtomicFile file_;
  std::map<std::string, Entry> entries_;
  std::map<std::string, std::string> aliases_;  ///< by the alias; without rings
  std::vector<std::string> objects_;
  DcpPlace nothing_;
};

/// Parts of a layer that may keep a state of their own, with which Megatron-Core expects an entry, empty without fp8.
std::vector<std::string> parts_with_state(const plan::LayerSpec& layer) {
  std::vector<std::string> parts = {"self_attention.core_attention"};
  if (layer.cross_attention())
    parts.insert(parts.end(), {"cross_attention.core_attention", "pre_cross_attn_layernorm"});
  // Norms that are not fused with the linear layer behind them.
  if (layer.attention().latents) parts.emplace_back("input_layernorm");
  if (layer.attention().latents || layer.experts() != nullptr) parts.emplace_back("pre_mlp_layernorm");
  for (const plan::Branch& branch : layer.branches)
    for (const plan::Linear& linear : branch.linears(layer.hidden))
      if (linear.name != "mlp.router" && linear.name != "mlp.shared_experts.gate") parts.push_back(linear.name);
  return parts;
}

void add_extra_states(DcpWriter& writer, const plan::ModelShape& shape) {
  for (std::int64_t number = 0; number < shape.num_layers; ++number) {
    const plan::LayerSpec layer = shape.layer(number);
    for (const std::string& part : parts_with_state(layer)) writer.add_nothing(state_entry(shape, layer.prefix + part));
  }
  std::vector<std::string> modules = {shape.stack() + "final_layernorm", "output_layer"};
  for (std::int64_t k = 0; k < shape.mtp_depths; ++k) {
    using Depth = plan::PredictionDepth;
    const Depth depth = shape.prediction_depth(k);
    for (const char* part : {Depth::kTokenNorm, Depth::kStateNorm, Depth::kProjection, Depth::kFinalNorm})
      modules.push_back(depth.prefix + part);
    for (const std::string& part : parts_with_state(depth.layer)) modules.push_back(depth.layer.prefix + part);
  }
  if (shape.encoder_decoder()) modules.insert(modules.end(), {"encoder.final_layernorm", "lm_head.output_layer"});
  for (const std::string& module : modules) writer.add_nothing(state_entry(shape, module));
}

at::ScalarType weight_type(const checkpoint::WeightSource& weights, const ExportOptions& options) {
  if (!options.dtype.empty()) return scalar_type(options.dtype, "export: dtype");
  const std::string stored = weights.dtype("embedding.word_embeddings.weight");
  if (options.training == nullptr) return scalar_type(stored, "export: dtype");
  const std::string& dtype = options.training->recipe.train.dtype;
  return dtype == "bf16" ? at::kBFloat16 : dtype == "fp16" ? at::kHalf : dtype == "fp64" ? at::kDouble : at::kFloat;
}

std::string second_name(const plan::ModelShape& shape, const std::string& ours) {
  return shape.encoder_decoder() ? second_dist_name(ours) : "";
}

/// The router's biases are float32 there whatever the weights are.
at::ScalarType type_of(const std::string& ours, at::ScalarType weights) {
  return is_expert_bias(ours) && weights != at::kDouble ? at::kFloat : weights;
}

void write_state(DcpWriter& writer, const TrainingState& training, const checkpoint::WeightSource& tensors,
                 const std::vector<std::string>& names, const plan::ModelShape& shape, at::ScalarType weights) {
  const at::ScalarType precise = weights == at::kDouble ? at::kDouble : at::kFloat;
  for (const std::string& ours : names) {
    if (is_expert_bias(ours)) continue;
    const std::vector<DistName> all = written_names(shape, ours);
    const DistName& theirs = all.front();
    const std::string second = second_name(shape, ours);
    const auto state_of = [](const std::string& kind, const std::string& name) {
      return concat("optimizer.state.", kind, ".", name);
    };
    const auto state = [&](const std::string& kind) { return state_of(kind, theirs.name); };
    for (const std::string& kind : training.kinds)
      if (tensors.shape(state_name(kind, ours)) != nullptr) {
        writer.add(tensors, state_name(kind, ours), {state(kind), theirs.index, theirs.extents}, precise,
                   written_share(training.recipe.optimizer, kind));
        for (std::size_t i = 1; i < all.size(); ++i) writer.alias(state(kind), state_of(kind, all[i].name));
        if (!second.empty()) writer.alias(state(kind), state_of(kind, second));
      }
    // The plain and the distributed optimizer call masters by two names.
    if (weights != precise)
      writer.add(tensors, ours, {state("param"), theirs.index, theirs.extents}, precise);
    else
      writer.alias(theirs.name, state("param"));
    writer.alias(state("param"), state("fp32_param"));
    for (std::size_t i = 1; i < all.size(); ++i)
      for (const char* masters : {"param", "fp32_param"}) writer.alias(state("param"), state_of(masters, all[i].name));
    if (second.empty()) continue;
    for (const char* masters : {"param", "fp32_param"}) writer.alias(state("param"), state_of(masters, second));
  }
}

/// The rows of the vocabulary in the files. Megatron-LM's softmax goes over rows of padding too, so that these need a
/// bias of their own where the loss is to stay what it is.
std::int64_t vocabulary_rows(const plan::ModelShape& shape, std::int64_t asked) {
  constexpr std::int64_t kMaxRows = std::int64_t{1} << 31;
  if (asked == 0 || asked == shape.vocab) return shape.vocab;
  if (!plan::has_output_bias(shape))
    throw ConfigError(rule_got_fix(
        "export: --padded-vocab-size needs the bias of a BERT's or a T5's output layer, which keeps rows "
        "of padding out of the softmax.",
        "an output layer without bias", "--padded-vocab-size 0; Megatron-LM itself adds rows of zeros where it pads"));
  if (asked < shape.vocab || asked > kMaxRows)
    throw ConfigError(rule_got_fix(
        concat("export: --padded-vocab-size must be from model.vocab_size, ", shape.vocab, ", to ", kMaxRows, "."),
        concat(asked), concat("--padded-vocab-size ", (shape.vocab + 127) / 128 * 128)));
  return asked;
}

/// What saved_recipe() does not take back: Muon there is of other matrices.
void check_muon(const config::RunConfig& recipe) {
  const auto& [model, optimizer] = std::tie(recipe.model, recipe.optimizer);
  if (optimizer.name != "muon") return;
  const config::ModelTraits& traits = config::model_traits(model.architecture);
  std::string got;
  if (!traits.causal || traits.encoder_decoder) got = "model.architecture " + model.architecture;
  if (model.position_embedding_type == "learned_absolute") got = "model.position_embedding_type learned_absolute";
  if (model.gated_linear_unit && optimizer.muon_split_gated) got = "optimizer.muon_split_gated true";
  if (!got.empty())
    throw ConfigError(rule_got_fix(
        "export: with Megatron-LM's Muon only a GPT without position embeddings continues, and a gated MLP "
        "as one matrix.",
        got, "--weights-only"));
}

}  // namespace

double written_share(const config::OptimizerConfig& optimizer, const std::string& kind) {
  return optimizer.name == "muon" && kind == "momentum_buffer" ? 1 - optimizer.muon_momentum : 1;
}

void write_torch_dist(const checkpoint::WeightSource& unpadded, const families::FolderConfig& config,
                      const fs::path& folder, const ExportOptions& options) {
  AtomicFolder::check(folder);
  const plan::ModelShape shape = families::shape_of(config.model);
  if ((shape.encoder_decoder() && !shape.learned_positions) || !shape.predicts_tokens())
    throw ConfigError(
        rule_got_fix("export: torch_dist holds a GPT or a BERT with its output layer, or a T5 that has "
                     "learned positions, as Megatron-LM's.",
                     concat(config.model.architecture, ", model.head ", config.model.head, ", position_embedding_type ",
                            config.model.position_embedding_type),
                     "--format huggingface"));
  if (config.model.use_mup)
    throw ConfigError(rule_got_fix("export: Megatron-LM's checkpoints hold models without model.use_mup.",
                                   "model.use_mup true", "keep the checkpoint as it is: every job here reads it"));
  const TrainingState* const training = options.training;
  if (training != nullptr) check_muon(training->recipe);
  const std::int64_t rows = vocabulary_rows(shape, options.padded_vocab_size);
  const PaddedSource weights(unpadded, rows);
  const at::ScalarType type = weight_type(weights, options);
  const std::string common = common_pickle(config.model, rows, torch_names(type).first, training);
  AtomicFolder output(folder);
  const std::string name = training == nullptr ? "release" : fmt::format("iter_{:07}", training->iteration);
  const fs::path place = output.temporary_path() / name;
  make_folder(place);
  DcpWriter writer(place);
  const std::vector<std::string> names = weights.tensors();
  for (const std::string& ours : names) {
    const std::vector<DistName> all = written_names(shape, ours);
    const DistName& theirs = all.front();
    writer.add(weights, ours, theirs, type_of(ours, type));
    for (std::size_t i = 1; i < all.size(); ++i) writer.alias(theirs.name, all[i].name);
    if (const std::string second = second_name(shape, ours); !second.empty()) writer.alias(theirs.name, second);
  }
  if (training != nullptr && !training->kinds.empty())
    write_state(writer, *training, PaddedSource(*training->tensors, rows), names, shape, type);
  add_extra_states(writer, shape);
  write_file(place / ".metadata", writer.finish());
  write_file(place / "common.pt", saved_value(common));
  write_file(place / "metadata.json",
             "{\"sharded_backend\": \"torch_dist\", \"sharded_backend_version\": 1, \"common_backend\": \"torch\", "
             "\"common_backend_version\": 1}");
  write_file(output.temporary_path() / "latest_checkpointed_iteration.txt",
             training == nullptr ? "release" : std::to_string(training->iteration));
  output.commit();
}

}  // namespace megatron::interchange
