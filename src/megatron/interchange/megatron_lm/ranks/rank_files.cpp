#include "megatron/interchange/megatron_lm/ranks/rank_files.h"

#include <algorithm>
#include <charconv>
#include <stdexcept>
#include <string_view>

#include "megatron/base/error.h"
#include "megatron/base/text/printable.h"
#include "megatron/interchange/megatron_lm/arguments.h"
#include "megatron/interchange/megatron_lm/megatron_names.h"

namespace megatron::interchange {
namespace fs = std::filesystem;
namespace {

using Kind = PickleNode::Kind;

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

}  // namespace

RankGrid RankGrid::of_first_tp() const {
  RankGrid first{.tp = 1, .pp = pp, .folders = {}};
  for (const auto& [rank, path] : folders)
    if (rank.first == 0) first.folders[rank] = path;
  return first;
}

RankGrid read_grid(const fs::path& folder) {
  RankGrid grid;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    constexpr std::string_view kPrefix = "mp_rank_";
    if (name.rfind(kPrefix, 0) != 0) continue;
    const std::vector<int> rank = numbers_of(std::string_view(name).substr(kPrefix.size()));
    if (rank.empty() || rank.size() > 2)
      throw ConfigError(rule_got_fix(
          concat(folder.string(), ": a rank's folder must be mp_rank_TT or mp_rank_TT_PPP (no expert parallelism)."),
          name));
    grid.folders[{rank[0], rank.size() > 1 ? rank[1] : 0}] = entry.path();
  }
  for (const auto& [rank, path] : grid.folders) {
    grid.tp = std::max(grid.tp, rank.first + 1);
    grid.pp = std::max(grid.pp, rank.second + 1);
  }
  if (grid.folders.size() != static_cast<std::size_t>(grid.tp) * static_cast<std::size_t>(grid.pp))
    throw ConfigError(
        rule_got_fix(concat(folder.string(), ": must hold the folders of ", grid.tp, " x ", grid.pp, " ranks."),
                     concat(grid.folders.size(), " of them")));
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

std::string layers_in(const std::string& ours) {
  for (const char* stack : {"encoder.layers.", "decoder.layers."})
    if (ours.starts_with(stack)) return stack;
  return "";
}

RankFiles::RankFiles(fs::path folder, const RankGrid& grid) : folder_(std::move(folder)) {
  for (const auto& [rank, path] : grid.folders) add_file(rank, path);
}

std::vector<std::string> RankFiles::tensors() const {
  std::vector<std::string> names;
  for (const auto& [name, place] : places_) names.push_back(name);
  return names;
}

const std::vector<std::int64_t>* RankFiles::shape(const std::string& tensor) const {
  const auto found = places_.find(tensor);
  return found == places_.end() ? nullptr : &found->second.shape;
}

void RankFiles::read(const std::string& tensor, const checkpoint::Box& box, const at::Tensor& into) const {
  const StoredTensor& stored = places_.at(tensor);
  if (!checkpoint::inside(box, stored.shape))
    throw std::logic_error(concat("a slice that lies outside of \"", tensor, "\""));
  read_stored(stored, box, into, concat(name(), ": \"", printable(tensor), "\""));
}

void RankFiles::add_file(const std::pair<int, int>& place, const fs::path& folder) {
  const bool is_split = !fs::exists(folder / "model_optim_rng.pt");  // the optimizer in a file of its own
  const TorchFile& file = files_.emplace_back(folder / (is_split ? "model_rng.pt" : "model_optim_rng.pt"));
  if (by_rank_.empty())
    tied_ = !Arguments(file.values(), arguments_of(file), file.name()).flag("untie_embeddings_and_output_weights");
  by_rank_[place] = &file;
  std::vector<ModelChunk>& parts = parts_[place];
  const std::string rank = folder.filename().string() + "/";
  if (const PickleNode* const model = file.values().find(file.root(), "model"); model != nullptr) {
    add_part(file, *model, rank + "model/", parts);
    return;
  }
  for (const PickleNode* model; (model = file.values().find(file.root(), concat("model", parts.size()))) != nullptr;) {
    if (parts.size() == kMaxParts)
      throw ConfigError(rule_got_fix(concat(file.name(), ": must hold at most ", kMaxParts, " parts of a model."),
                                     concat("\"model", kMaxParts, "\" too")));
    add_part(file, *model, concat(rank, "model", parts.size(), "/"), parts);
  }
  if (parts.empty())
    throw ConfigError(rule_got_fix(concat(file.name(), ": must hold the weights, \"model\" or \"model0\"."), "none"));
}

void RankFiles::add_part(const TorchFile& file, const PickleNode& model, const std::string& prefix,
                         std::vector<ModelChunk>& parts) {
  ModelChunk part{.prefix = prefix};
  add_tensors(file, model, "", part, 0);
  std::set<std::string> layers;
  for (const std::string& name : part.tensors)
    if (const std::string stack = layers_in(name); !stack.empty())
      if (layers.insert(name.substr(0, name.find('.', stack.size()))).second) ++part.num_layers[stack];
  parts.push_back(std::move(part));
}

void RankFiles::add_tensors(const TorchFile& file, const PickleNode& dict, const std::string& name, ModelChunk& part,
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

void RankFiles::add_tensor(const TorchFile& file, const PickleNode& node, const std::string& theirs, ModelChunk& part) {
  const auto [ours, is_parameter] = our_name(theirs, tied_, file.name());
  if (is_parameter) part.parameters.push_back(ours);
  if (ours.empty() && is_parameter) {
    part.tied_copies.push_back(part.prefix + "copy of the embedding: " + theirs);
    places_[part.tied_copies.back()] = file.tensor(node, theirs);
  }
  if (ours.empty()) return;
  if (!part.tensors.insert(ours).second)
    throw ConfigError(rule_got_fix(concat(file.name(), ": must hold each tensor once."),
                                   concat("\"", printable(ours), "\" under two names")));
  places_[part.prefix + ours] = file.tensor(node, theirs);
}

}  // namespace megatron::interchange
