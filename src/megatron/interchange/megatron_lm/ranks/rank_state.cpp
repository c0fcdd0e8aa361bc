#include "megatron/interchange/megatron_lm/ranks/rank_state.h"
#include "megatron/interchange/megatron_lm/saved_run.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/text/printable.h"
#include "megatron/checkpoint/files/dtypes.h"
#include "megatron/checkpoint/files/safetensors.h"
#include "megatron/config/optimizers.h"

namespace megatron::interchange {
namespace fs = std::filesystem;
namespace {

using Kind = PickleNode::Kind;

constexpr std::int64_t kParameterAlignment = 64, kCompared = 4096;
constexpr const char *kWords = "embedding.word_embeddings.weight", *kOutput = "output_layer.weight";

[[noreturn]] void refuse(const std::string& where, const std::string& rule, const std::string& got) {
  throw ConfigError(rule_got_fix(concat(where, ": the optimizer's state must have ", rule, "."), got));
}

/// A parameter of a rank's optimizer.
struct Parameter {
  std::string prefix, name;  ///< of its part, and our name within it; a name that is empty: a copy of the tied matrix
  std::string weight;        ///< the name in RankFiles of a tensor with its shape and values
  bool decays = false;
  bool is_matrix = false;  ///< as Megatron-LM's Muon sees it
};

/// Of which parameters an optimizer is.
enum class OptimizerPart : std::uint8_t { All, Matrices, Others };

bool is_of(OptimizerPart part, const Parameter& parameter) {
  return part == OptimizerPart::All || (part == OptimizerPart::Matrices) == parameter.is_matrix;
}

/// Those of one part in the module's order.
std::vector<Parameter> parameters_of(const RankFiles& files, int tp, const RankFiles::ModelChunk& part) {
  std::vector<Parameter> parameters;
  for (const std::string& name : part.parameters) {
    Parameter parameter{.prefix = part.prefix,
                        .name = name,
                        .weight = name.empty() ? files.parts(tp, 0).front().prefix + kWords : part.prefix + name};
    const std::vector<std::int64_t>* const shape = files.shape(parameter.weight);
    if (shape == nullptr) refuse(files.name(), concat("a \"", kWords, "\" on the first stage"), "none");
    parameter.decays = shape->size() > 1 && !parameter.name.ends_with(".bias");
    parameter.is_matrix = shape->size() > 1 && !name.empty() && name != kWords && name != kOutput;
    parameters.push_back(std::move(parameter));
  }
  return parameters;
}

std::int64_t elements_of(const RankFiles& files, const Parameter& parameter) {
  return static_cast<std::int64_t>(checkpoint::shape_elements(*files.shape(parameter.weight), parameter.weight));
}

/// The entry of a dictionary whose keys are whole numbers.
const PickleNode* entry_of(const Pickle& values, const PickleNode& dict, std::int64_t key) {
  if (dict.kind != Kind::Dict) return nullptr;
  for (std::size_t i = 0; i + 1 < dict.items.size(); i += 2)
    if (const PickleNode& node = values[dict.items[i]]; node.kind == Kind::Integer && node.integer == key)
      return &values[dict.items[i + 1]];
  return nullptr;
}

/// The entries of such a dictionary as a table, for looking up many.
std::map<std::int64_t, const PickleNode*> entries_of(const Pickle& values, const PickleNode* dict) {
  std::map<std::int64_t, const PickleNode*> entries;
  if (dict == nullptr || dict->kind != Kind::Dict) return entries;
  for (std::size_t i = 0; i + 1 < dict->items.size(); i += 2)
    if (const PickleNode& node = values[dict->items[i]]; node.kind == Kind::Integer)
      entries[node.integer] = &values[dict->items[i + 1]];
  return entries;
}

double number_in(const Pickle& values, const PickleNode& dict, const char* name, double otherwise) {
  const PickleNode* const found = values.find(dict, name);
  if (found == nullptr) return otherwise;
  return found->kind == Kind::Integer ? static_cast<double>(found->integer)
         : found->kind == Kind::Float ? found->number
                                      : otherwise;
}

/// One rank's state.
class RankReader {
 public:
  RankReader(RankFiles& files, int tp, int pp, const config::OptimizerConfig& optimizer)
      : files_(files),
        file_(files.file(tp, pp)),
        values_(file_.values()),
        optimizer_(optimizer),
        kinds_(config::state_names(optimizer)) {
    for (const RankFiles::ModelChunk& part : files.parts(tp, pp)) chunks_.push_back(parameters_of(files, tp, part));
  }

  RankState read(const fs::path& folder) {
    const PickleNode* outer = values_.find(file_.root(), "optimizer");
    if (outer == nullptr || outer->kind == Kind::None) return {};
    if (outer->kind == Kind::List && optimizer_.name == "muon") return read_muon(*outer);
    if (outer->kind != Kind::Dict) refuse(file_.name(), "one optimizer", "several, or none that is known");
    if (fs::exists(folder / kDistributed)) return read_buffers(files_.keep(folder / kDistributed));
    return read_optimizer(*outer, OptimizerPart::All);
  }

 private:
  static constexpr const char* kDistributed = "distrib_optim.pt";

  struct Group {
    std::vector<std::int64_t> numbers;
    std::vector<const Parameter*> parameters;
  };

  /// Muon's and Adam's.
  RankState read_muon(const PickleNode& list) {
    if (list.items.size() != 2) refuse(file_.name(), "two optimizers, Muon's and Adam's", concat(list.items.size()));
    RankState state = read_optimizer(values_[list.items[0]], OptimizerPart::Matrices);
    RankState others = read_optimizer(values_[list.items[1]], OptimizerPart::Others);
    if (state.masters != others.masters) refuse(file_.name(), "masters of all parameters", "those of one optimizer");
    if (state.kinds.empty() != others.kinds.empty())
      refuse(file_.name(), "the state of both optimizers", "that of one of them");
    state.kinds.insert(state.kinds.end(), others.kinds.begin(), others.kinds.end());
    return state;
  }

  RankState read_optimizer(const PickleNode& outer, OptimizerPart part) {
    const PickleNode* const nested = values_.find(outer, "optimizer");
    const PickleNode& inner = nested == nullptr ? outer : *nested;
    const auto groups = groups_of(inner, part);
    RankState state{.masters = read_masters(outer, groups), .kinds = {}};
    const auto entries = entries_of(values_, values_.find(inner, "state"));
    for (const std::string& kind : kinds_)
      if (read_kind(groups, entries, kind)) state.kinds.push_back(kind);
    return state;
  }

  /// The optimizer's groups in its order, and the parameters of each.
  std::vector<Group> groups_of(const PickleNode& optimizer, OptimizerPart part) const {
    const PickleNode* const list = values_.find(optimizer, "param_groups");
    if (list == nullptr || list->kind != Kind::List) refuse(file_.name(), "its \"param_groups\"", "none");
    std::vector<Group> groups;
    std::array<bool, 2> seen{};
    std::size_t covered = 0;
    for (const std::uint32_t item : list->items) {
      const PickleNode& dict = values_[item];
      Group group{.numbers = numbers_of(dict), .parameters = {}};
      const bool decays = number_in(values_, dict, "wd_mult", number_in(values_, dict, "weight_decay", 0)) != 0;
      if (group.numbers.empty()) {
        groups.push_back({});
        continue;
      }
      for (const char* flag : {"is_decoupled_lr", "is_expert_parallel"})
        if (const PickleNode* set = values_.find(dict, flag); set != nullptr && set->integer != 0)
          refuse(file_.name(), "groups by weight decay alone", concat("\"", flag, "\""));
      if (std::exchange(seen[decays ? 1 : 0], true))
        refuse(file_.name(), "groups by weight decay alone", "several that are alike in it");
      for (const auto& chunk : chunks_)
        for (const Parameter& parameter : chunk)
          if (parameter.decays == decays && is_of(part, parameter)) group.parameters.push_back(&parameter);
      if (group.parameters.size() != group.numbers.size())
        refuse(file_.name(), concat("a group of ", group.parameters.size(), " parameters, as the model has them"),
               concat(group.numbers.size()));
      covered += group.parameters.size();
      groups.push_back(std::move(group));
    }
    std::size_t all = 0;
    for (const auto& chunk : chunks_)
      for (const Parameter& parameter : chunk) all += is_of(part, parameter) ? 1 : 0;
    if (covered != all) refuse(file_.name(), "groups of all parameters", concat(covered, " of ", all));
    return groups;
  }

  std::vector<std::int64_t> numbers_of(const PickleNode& group) const {
    const PickleNode* const list = values_.find(group, "params");
    if (list == nullptr || list->kind != Kind::List) refuse(file_.name(), "groups of numbered parameters", "others");
    std::vector<std::int64_t> numbers;
    for (const std::uint32_t item : list->items) {
      if (values_[item].kind != Kind::Integer) refuse(file_.name(), "groups of numbered parameters", "others");
      numbers.push_back(values_[item].integer);
    }
    return numbers;
  }

  /// `node`, of a parameter, under the name with `infix`.
  void add(const Parameter& parameter, const std::string& infix, const PickleNode& node) {
    if (node.kind != Kind::Tensor) refuse(file_.name(), "tensors", "others");
    StoredTensor tensor = file_.tensor(node, infix + parameter.name);
    if (tensor.shape != *files_.shape(parameter.weight))
      refuse(file_.name(), concat("the shape of \"", printable(parameter.name), "\" in its place"), "another");
    if (!parameter.name.empty()) files_.add(parameter.prefix + infix + parameter.name, std::move(tensor));
  }

  /// Whether there are float32 masters of 16-bit parameters: lists as the groups are.
  bool read_masters(const PickleNode& optimizer, const std::vector<Group>& groups) {
    const PickleNode* const lists = values_.find(optimizer, "fp32_from_fp16_params");
    if (lists == nullptr) return false;
    if (lists->kind != Kind::List || lists->items.size() != groups.size())
      refuse(file_.name(), concat("masters of ", groups.size(), " groups"), "of others");
    for (std::size_t g = 0; g < groups.size(); ++g) {
      const PickleNode& list = values_[lists->items[g]];
      if (list.kind != Kind::List || list.items.size() != groups[g].parameters.size())
        refuse(file_.name(), "a master of every parameter", "other lists");
      for (std::size_t i = 0; i < list.items.size(); ++i)
        add(*groups[g].parameters[i], kMasterInfix, values_[list.items[i]]);
    }
    return true;
  }

  bool read_kind(const std::vector<Group>& groups, const std::map<std::int64_t, const PickleNode*>& entries,
                 const std::string& kind) {
    std::size_t found = 0, all = 0;
    for (const Group& group : groups)
      for (std::size_t i = 0; i < group.numbers.size(); ++i) {
        if (!keeps_state(optimizer_, kind, group.parameters[i]->is_matrix)) continue;
        ++all;
        const auto entry = entries.find(group.numbers[i]);
        const PickleNode* const node = entry == entries.end() ? nullptr : values_.find(*entry->second, kind);
        if (node == nullptr || node->kind == Kind::None) continue;
        add(*group.parameters[i], state_infix(kind), *node);
        ++found;
      }
    if (found != 0 && found != all)
      refuse(file_.name(), concat("\"", kind, "\" of all its parameters"), concat(found, " of ", all));
    return found != 0;
  }

  /// The distributed optimizer's, of each part's buffer.
  RankState read_buffers(const TorchFile& file) {
    const PickleNode* const coalesced = file.values().find(file.root(), "buckets_coalesced");
    if (coalesced == nullptr || coalesced->integer == 0)
      refuse(file.name(), "the buckets of a buffer in one tensor (Megatron-Core 0.7 or later)", "others");
    RankState state{.masters = true, .kinds = kinds_};
    std::int64_t number = 0;
    for (const std::vector<Parameter>& chunk : chunks_) {
      if (chunk.empty()) continue;  // an empty stage has no buffer
      const PickleNode* const buffer = entry_of(file.values(), file.root(), number++);
      if (buffer == nullptr || buffer->kind != Kind::Dict || buffer->items.size() != 2)
        refuse(file.name(), "one buffer of each part of the model", "others");
      read_buffer(file, file.values()[buffer->items[1]], chunk);
    }
    return state;
  }

  void read_buffer(const TorchFile& file, const PickleNode& buffer, const std::vector<Parameter>& parameters) {
    const StoredTensor masters = flat_tensor(file, buffer, "param");
    std::vector<StoredTensor> state;
    for (const std::string& kind : kinds_) {
      state.push_back(flat_tensor(file, buffer, kind));
      if (state.back().shape != masters.shape) refuse(file.name(), "buffers that are as long as the masters'", kind);
    }
    std::int64_t bucket = 0, at = 0;
    for (auto parameter = parameters.rbegin(); parameter != parameters.rend(); ++parameter) {
      const std::int64_t past = (at - bucket) % kParameterAlignment;
      const std::int64_t aligned = past == 0 ? at : at + kParameterAlignment - past;
      if (!is_master(masters, aligned, *parameter)) {
        if (aligned == at || !is_master(masters, at, *parameter))
          refuse(file.name(), concat("masters that round to \"", printable(parameter->name), "\""), "others");
        bucket = at;
      } else {
        at = aligned;
      }
      if (!parameter->name.empty()) {
        files_.add(parameter->prefix + kMasterInfix + parameter->name, slice_of(masters, at, *parameter));
        for (std::size_t k = 0; k < kinds_.size(); ++k)
          files_.add(parameter->prefix + state_infix(kinds_[k]) + parameter->name, slice_of(state[k], at, *parameter));
      }
      at += elements_of(files_, *parameter);
    }
    if (at != masters.shape[0]) refuse(file.name(), "buffers that end with a parameter", "a longer one");
  }

  static StoredTensor flat_tensor(const TorchFile& file, const PickleNode& buffer, const std::string& name) {
    const PickleNode* const node = file.values().find(buffer, name);
    if (node == nullptr || node->kind != Kind::Tensor)
      refuse(file.name(), concat("\"", name, "\" of each buffer"), "none");
    StoredTensor tensor = file.tensor(*node, name);
    if (tensor.shape.size() != 1 || (!tensor.strides.empty() && tensor.strides[0] != 1))
      refuse(file.name(), "buffers of one dimension", concat(tensor.shape.size(), ", or with gaps"));
    return tensor;
  }

  StoredTensor slice_of(const StoredTensor& flat, std::int64_t begin, const Parameter& parameter) const {
    const auto width = checkpoint::dtype_bytes(flat.dtype);
    return {.bytes = flat.bytes.subspan(static_cast<std::uint64_t>(begin) * width),
            .dtype = flat.dtype,
            .shape = *files_.shape(parameter.weight),
            .strides = {}};
  }

  /// Whether what begins there, rounded, is the parameter: its first rows.
  bool is_master(const StoredTensor& flat, std::int64_t begin, const Parameter& parameter) const {
    const std::int64_t elements = elements_of(files_, parameter);
    if (elements > flat.shape[0] - begin) return false;
    if (elements == 0) return true;
    checkpoint::Box box{std::vector<std::int64_t>(files_.shape(parameter.weight)->size(), 0),
                        *files_.shape(parameter.weight)};
    if (!box.shape.empty()) {
      const std::int64_t row = std::max<std::int64_t>(elements / box.shape[0], 1);
      box.shape[0] = std::min(box.shape[0], std::max<std::int64_t>(kCompared / row, 1));
    }
    const at::ScalarType type = scalar_type(files_.dtype(parameter.weight), files_.name());
    const at::Tensor weight = at::empty(box.shape, type), rounded = at::empty(box.shape, type);
    files_.read(parameter.weight, box, weight);
    read_stored(slice_of(flat, begin, parameter), box, rounded, files_.name());
    return weight.equal(rounded);
  }

  RankFiles& files_;
  const TorchFile& file_;
  const Pickle& values_;
  const config::OptimizerConfig& optimizer_;
  const config::StateNames kinds_;
  std::vector<std::vector<Parameter>> chunks_;
};

}  // namespace

std::string state_infix(const std::string& kind) { return kind + "/"; }

RankState add_state(RankFiles& files, const RankGrid& grid, const config::OptimizerConfig& optimizer) {
  std::optional<RankState> all;
  for (const auto& [rank, folder] : grid.folders) {
    RankState state = RankReader(files, rank.first, rank.second, optimizer).read(folder);
    if (all && (all->masters != state.masters || all->kinds != state.kinds))
      refuse(files.name(), "the same kinds on all ranks", concat("others in ", folder.filename().string()));
    all = std::move(state);
  }
  return all.value_or(RankState());
}

}  // namespace megatron::interchange
