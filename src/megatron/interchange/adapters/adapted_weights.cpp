#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/named_path.h"
#include "megatron/base/text/json.h"
#include "megatron/checkpoint/files/folder.h"
#include "megatron/checkpoint/files/running_hash.h"
#include "megatron/checkpoint/model_state.h"
#include "megatron/families/hf_config.h"
#include "megatron/interchange/adapters/adapters.h"
#include "megatron/interchange/adapters/peft.h"
#include "megatron/interchange/formats.h"
#include "megatron/interchange/weights.h"
#include "megatron/parallel/magnitude.h"

namespace megatron::interchange {
namespace fs = std::filesystem;
namespace {

/// Whether a checkpoint of ours holds adapters.
bool has_matrices(const checkpoint::WeightSource& source) {
  return std::ranges::any_of(source.tensors(),
                             [](const std::string& name) { return name.find(".lora_A.") != std::string::npos; });
}

at::Tensor read_whole(const checkpoint::WeightSource& source, const std::string& name, const at::TensorOptions& type) {
  const std::vector<std::int64_t>& shape = *source.shape(name);
  const at::Tensor whole = at::empty(shape, type);
  source.read(name, {std::vector<std::int64_t>(shape.size(), 0), shape}, whole);
  return whole;
}

/// What the checkpoint of a run knows the weights by that its adapters were trained on; "": nothing is known.
std::string digest_of_base(const fs::path& folder) {
  const auto metadata = checkpoint::read_manifest(checkpoint::find_checkpoint(folder)).metadata;
  const auto found = metadata.find(kInputs);
  const auto inputs = found == metadata.end() ? std::nullopt : try_parse_json(found->second);
  const auto digest = inputs && inputs->is_object() ? inputs->value("base", nlohmann::json()) : nlohmann::json();
  return digest.is_string() ? digest.get<std::string>() : "";
}

/// Where adapters are to be.
enum class Placement : std::uint8_t { Merged, Beside };

/// Adapters of a run of ours are changes of certain weights: of others they make anything.
void check_base(const fs::path& folder, const std::string& base_folder, const config::ModelConfig& base,
                Placement placement) {
  if (!format_of(folder).native) return;
  const std::string saved = digest_of_base(folder);
  if (saved.empty()) return;
  config::ModelConfig model = checkpoint::saved_recipe(folder).model;
  model.vocab_size = base.vocab_size;
  model.max_position_embeddings = base.max_position_embeddings;
  // The recipe is a file from outside: nothing is counted by its sizes before they are the base's.
  const auto sizes = [](const config::ModelConfig& m) {
    return std::array{m.num_layers,  m.decoder_num_layers,  m.mtp_num_layers,
                      m.hidden_size, m.num_attention_heads, m.num_experts};
  };
  if (sizes(model) != sizes(base))
    throw ConfigError(rule_got_fix(concat("The adapters in ", folder.string(), " belong to a model of its shape."),
                                   concat(base_folder, ", which is another model"), "name their base"));
  if (weights_digest(base_folder, families::shape_of(model)) != saved)
    throw ConfigError(rule_got_fix(
        concat("The adapters in ", folder.string(), placement == Placement::Merged ? " are merged into" : " lie beside",
               " the weights that they were trained on."),
        base_folder + ", which holds others",
        placement == Placement::Merged ? concat("put back what ", base_folder, " held when they were trained")
                                       : "name their base as the model"));
}

}  // namespace

std::string weights_digest(const fs::path& folder, const plan::ModelShape& shape) {
  constexpr std::int64_t kExtent = 16;  // of three boxes: at a weight's beginning, middle and end
  const auto source = open_weights(folder);
  std::set<std::string> names;
  for (const auto& spec : plan::trained_parameters(shape, 1, 0, {plan::whole_model(shape.num_layers)}))
    names.insert(spec.name);
  checkpoint::RunningHash hash;
  for (const std::string& name : names) {
    const std::vector<std::int64_t>* whole = source->shape(name);
    if (whole == nullptr) continue;
    hash.add(name);
    for (const std::int64_t place : {0, 1, 2}) {
      checkpoint::Box box;
      for (const std::int64_t size : *whole) {
        const std::int64_t extent = std::min(size, kExtent);
        box.offset.push_back((size - extent) * place / 2);
        box.shape.push_back(extent);
      }
      const at::Tensor values = at::empty(box.shape, at::kFloat);
      source->read(name, box, values);
      const at::Tensor rounded = values.to(at::kBFloat16).contiguous();
      hash.add(rounded.const_data_ptr(), static_cast<std::size_t>(rounded.nbytes()));
    }
  }
  return hash.text();
}

bool holds_adapter(const fs::path& folder) {
  const WeightFormat* const format = find_format(folder);
  if (format == nullptr) return false;
  if (!format->native) return is_peft(folder);
  try {
    return has_matrices(*checkpoint::open_checkpoint(folder));
  } catch (const ConfigError&) {  // damage is said where it is opened
    return false;
  }
}

std::string adapter_base(const fs::path& folder) {
  return format_of(folder).native ? checkpoint::saved_recipe(folder).lora.base : peft_base(folder);
}

OpenedAdapter open_adapter(const fs::path& folder, const config::ModelConfig& model, const fs::path& base,
                           AdapterUse use) {
  const WeightFormat& format = format_of(folder);
  if (!format.native && is_peft(folder)) return open_peft(folder, model, base, use);
  std::shared_ptr<const checkpoint::WeightSource> matrices;
  if (format.native) matrices = checkpoint::open_checkpoint(folder);
  if (!matrices || !has_matrices(*matrices))
    throw ConfigError(
        rule_got_fix("A run with lora.rank begins with adapters: a checkpoint of such a run, or PEFT's "
                     "folder (adapter_config.json).",
                     concat(place_text(folder), " holds a whole model"),
                     concat("leave --load out; --lora.base ", folder.string(), " names the model")));
  const auto lora = plan::lora_of(checkpoint::saved_recipe(folder).lora);
  if (!lora)
    throw ConfigError(
        rule_got_fix(concat("The recipe of the checkpoint ", folder.string(), " must be of adapters."), "lora.rank 0"));
  return {std::move(matrices), *lora};
}

AdaptedWeights::AdaptedWeights(std::unique_ptr<const checkpoint::WeightSource> base, OpenedAdapter adapter,
                               std::string base_folder, const config::ModelConfig& model)
    : base_(std::move(base)), adapter_(std::move(adapter)), base_folder_(std::move(base_folder)) {
  const plan::ModelShape shape = families::shape_of(model);
  std::size_t used = 0;
  for (std::int64_t number = 0; number < shape.num_layers; ++number) {
    const plan::LayerSpec layer = shape.layer(number);
    for (const plan::Branch& branch : layer.branches)
      for (const plan::Linear& linear : branch.linears(layer.hidden))
        for (const plan::ProjectionSlice& part : plan::projection_slices(layer, linear, 1)) {
          Part own{part, plan::adapter_name(layer, linear, part, "A"), plan::adapter_name(layer, linear, part, "B"),
                   plan::magnitude_name(layer, linear, part), linear.inputs};
          std::vector<std::pair<std::string, std::vector<std::int64_t>>> wanted = {
              {own.a, {adapter_.lora.rank, linear.inputs}}, {own.b, {part.outputs(), adapter_.lora.rank}}};
          if (adapter_.lora.dora) wanted.push_back({own.magnitude, {part.outputs()}});
          if (std::ranges::none_of(wanted,
                                   [&](const auto& each) { return adapter_.matrices->shape(each.first) != nullptr; }))
            continue;
          for (const auto& [tensor, shape_there] : wanted)
            if (const auto* const found = adapter_.matrices->shape(tensor); found == nullptr || *found != shape_there)
              throw ConfigError(
                  rule_got_fix(concat(name(), ": ", tensor, " must be of the model in ", base_folder_, "."),
                               found == nullptr ? "no such tensor" : "one of another shape",
                               "name the folder of the model that it was trained on"));
          parts_[layer.prefix + linear.name + ".weight"].push_back(std::move(own));
          used += wanted.size();
        }
  }
  if (used != adapter_.matrices->tensors().size())
    throw ConfigError(
        rule_got_fix(concat(name(), ": every adapter must be of a layer of the model in ", base_folder_, "."),
                     concat(adapter_.matrices->tensors().size() - used, " are not"),
                     "name the folder of the model that they were trained on"));
}

/// `a` has the columns of the slice that is read.
struct AdaptedWeights::Matrices {
  at::Tensor a, b, magnitude;
};

at::Tensor AdaptedWeights::merged(const std::string& tensor, const checkpoint::Box& box,
                                  std::vector<Matrices>& matrices, const at::TensorOptions& type) const {
  const at::Tensor sum = at::empty(box.shape, type);
  base_->read(tensor, box, sum);
  const plan::Lora& lora = adapter_.lora;
  const std::vector<Part>& parts = parts_.at(tensor);
  const std::int64_t first = box.offset[0], end = first + box.shape[0];
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Part& part = parts[i];
    Matrices& own = matrices.at(i);
    for (std::int64_t group = 0; group < part.rows.groups; ++group) {
      const std::int64_t begin = group * part.rows.group_outputs + part.rows.offset;
      const std::int64_t from = std::max(first, begin), to = std::min(end, begin + part.rows.length);
      if (from >= to) continue;
      if (!own.a.defined()) {
        own.a = read_whole(*adapter_.matrices, part.a, type).narrow(1, box.offset[1], box.shape[1]);
        own.b = read_whole(*adapter_.matrices, part.b, type);
        if (lora.dora) own.magnitude = read_whole(*adapter_.matrices, part.magnitude, type);
      }
      const std::int64_t row = group * part.rows.length + from - begin;
      const at::Tensor rows = sum.narrow(0, from - first, to - from);
      rows.addmm_(own.b.narrow(0, row, to - from), own.a, 1, lora.scale());
      if (lora.dora)
        rows.mul_(parallel::magnitude_factor(own.magnitude.narrow(0, row, to - from), rows.square().sum(1).sqrt())
                      .unsqueeze(1));
    }
  }
  return sum;
}

void AdaptedWeights::read(const std::string& tensor, const checkpoint::Box& box, const at::Tensor& into) const {
  constexpr std::int64_t kMaxElements = std::int64_t{1} << 22;
  const auto found = parts_.find(tensor);
  if (found == parts_.end()) return base_->read(tensor, box, into);
  const at::TensorOptions type =
      at::TensorOptions().dtype(into.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  std::vector<Matrices> matrices(found->second.size());
  if (!adapter_.lora.dora) {
    into.copy_(merged(tensor, box, matrices, type));
    return;
  }
  // Norms are of whole rows, of which the slice may have a part.
  const std::int64_t inputs = found->second.front().inputs, step = std::max<std::int64_t>(1, kMaxElements / inputs);
  for (std::int64_t row = 0; row < box.shape[0]; row += step) {
    const std::int64_t rows = std::min(step, box.shape[0] - row);
    into.narrow(0, row, rows)
        .copy_(merged(tensor, {{box.offset[0] + row, 0}, {rows, inputs}}, matrices, type)
                   .narrow(1, box.offset[1], box.shape[1]));
  }
}

namespace {

std::unique_ptr<AdaptedWeights> adapted(const fs::path& folder, const std::string& base_folder, Placement placement) {
  const config::ModelConfig model = model_config_of(base_folder);
  check_base(folder, base_folder, model, placement);
  return std::make_unique<AdaptedWeights>(
      open_weights(base_folder), open_adapter(folder, model, base_folder, AdapterUse::Merging), base_folder, model);
}

}  // namespace

std::unique_ptr<checkpoint::WeightSource> open_adapted(const fs::path& folder, const std::string& base_folder) {
  if (base_folder.empty() || find_format(base_folder) == nullptr || holds_adapter(base_folder))
    throw ConfigError(rule_got_fix(
        concat("The adapters in ", folder.string(), " are merged into the weights that they were trained on."),
        base_folder.empty() ? "weights that were drawn and never saved"
                            : concat("\"", base_folder, "\" holds no weights of a whole model"),
        "put the model where the adapters say: lora.base of the recipe, base_model_name_or_path of "
        "adapter_config.json"));
  return adapted(folder, base_folder, Placement::Merged);
}

OpenedAdapter open_kept(const fs::path& folder, const std::string& base_folder) {
  return adapted(folder, base_folder, Placement::Beside)->adapter();
}

}  // namespace megatron::interchange
