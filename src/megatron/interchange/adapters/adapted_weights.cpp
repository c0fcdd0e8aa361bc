#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/named_path.h"
#include "megatron/checkpoint/files/folder.h"
#include "megatron/checkpoint/model_state.h"
#include "megatron/interchange/adapters/adapters.h"
#include "megatron/interchange/adapters/peft.h"
#include "megatron/interchange/formats.h"
#include "megatron/interchange/hugging_face/hf_config.h"
#include "megatron/interchange/weights.h"

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

}  // namespace

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

OpenedAdapter open_adapter(const fs::path& folder, const config::ModelConfig& model, AdapterUse use) {
  const WeightFormat& format = format_of(folder);
  if (!format.native && is_peft(folder)) return open_peft(folder, model, use);
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
  const plan::ModelShape shape = shape_of(model);
  std::size_t used = 0;
  for (std::int64_t number = 0; number < shape.num_layers; ++number) {
    const plan::LayerSpec layer = shape.layer(number);
    for (const plan::Branch& branch : layer.branches)
      for (const plan::Linear& linear : branch.linears(layer.hidden))
        for (const plan::LinearPart& part : plan::linear_parts(layer, linear, 1)) {
          Part own{part, plan::adapter_name(layer, linear, part, "A"), plan::adapter_name(layer, linear, part, "B")};
          const auto *a = adapter_.matrices->shape(own.a), *b = adapter_.matrices->shape(own.b);
          if (a == nullptr && b == nullptr) continue;
          const std::vector<std::int64_t> want_a{adapter_.lora.rank, linear.inputs},
              want_b{part.outputs(), adapter_.lora.rank};
          if (a == nullptr || b == nullptr || *a != want_a || *b != want_b)
            throw ConfigError(
                rule_got_fix(concat(name(), ": the adapter ", own.a, " must be of the model in ", base_folder_, "."),
                             "matrices of other shapes", "name the folder of the model that it was trained on"));
          parts_[layer.prefix + linear.name + ".weight"].push_back(std::move(own));
          used += 2;
        }
  }
  if (used != adapter_.matrices->tensors().size())
    throw ConfigError(
        rule_got_fix(concat(name(), ": every adapter must be of a layer of the model in ", base_folder_, "."),
                     concat(adapter_.matrices->tensors().size() - used, " are not"),
                     "name the folder of the model that they were trained on"));
}

void AdaptedWeights::read(const std::string& tensor, const checkpoint::Box& box, const at::Tensor& into) const {
  const auto found = parts_.find(tensor);
  if (found == parts_.end()) return base_->read(tensor, box, into);
  const at::TensorOptions type =
      at::TensorOptions().dtype(into.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  const at::Tensor sum = at::empty(box.shape, type);
  base_->read(tensor, box, sum);
  const std::int64_t first = box.offset[0], end = first + box.shape[0];
  for (const Part& part : found->second) {
    at::Tensor a, b;
    for (std::int64_t group = 0; group < part.rows.groups; ++group) {
      const std::int64_t begin = group * part.rows.group_outputs + part.rows.offset;
      const std::int64_t from = std::max(first, begin), to = std::min(end, begin + part.rows.length);
      if (from >= to) continue;
      if (!a.defined()) {
        a = read_whole(*adapter_.matrices, part.a, type).narrow(1, box.offset[1], box.shape[1]);
        b = read_whole(*adapter_.matrices, part.b, type);
      }
      sum.narrow(0, from - first, to - from)
          .addmm_(b.narrow(0, group * part.rows.length + from - begin, to - from), a, 1, adapter_.lora.scale());
    }
  }
  into.copy_(sum);
}

std::unique_ptr<checkpoint::WeightSource> open_adapted(const fs::path& folder, const std::string& base_folder) {
  if (base_folder.empty() || find_format(base_folder) == nullptr || holds_adapter(base_folder))
    throw ConfigError(rule_got_fix(
        concat("The adapters in ", folder.string(), " are merged into the weights that they were trained on."),
        base_folder.empty() ? "weights that were drawn and never saved"
                            : concat("\"", base_folder, "\" holds no weights of a whole model"),
        "put the model where the adapters say: lora.base of the recipe, base_model_name_or_path of "
        "adapter_config.json"));
  const config::ModelConfig model = model_config_of(base_folder);
  return std::make_unique<AdaptedWeights>(open_weights(base_folder), open_adapter(folder, model, AdapterUse::Merging),
                                          base_folder, model);
}

}  // namespace megatron::interchange
