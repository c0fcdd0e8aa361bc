#include "megatron/interchange/weights.h"

#include <algorithm>
#include <map>
#include <optional>
#include <variant>

#include "megatron/base/collected_errors.h"
#include "megatron/base/error.h"
#include "megatron/config/run_config.h"
#include "megatron/config/unused_options.h"
#include "megatron/config/value.h"
#include "megatron/families/folder.h"
#include "megatron/families/hf_config.h"
#include "megatron/interchange/formats.h"
#include "megatron/interchange/megatron_lm/megatron_torch.h"

namespace megatron::interchange {
namespace {

class WithoutDepths final : public checkpoint::WeightSource {
 public:
  explicit WithoutDepths(const checkpoint::WeightSource& all) : all_(all) {}

  std::string name() const override { return all_.name(); }
  std::vector<std::string> tensors() const override {
    std::vector<std::string> names = all_.tensors();
    std::erase_if(names, is_of_depth);
    return names;
  }
  const std::vector<std::int64_t>* shape(const std::string& tensor) const override {
    return is_of_depth(tensor) ? nullptr : all_.shape(tensor);
  }
  std::string dtype(const std::string& tensor) const override { return all_.dtype(tensor); }
  void read(const std::string& tensor, const checkpoint::Box& box, const at::Tensor& into) const override {
    all_.read(tensor, box, into);
  }

 private:
  static bool is_of_depth(const std::string& tensor) { return tensor.starts_with("mtp."); }

  const checkpoint::WeightSource& all_;
};

using Parameters = std::map<std::string, std::vector<std::int64_t>>;  // names and shapes

/// Those of the whole model; nothing where its options do not fit each other.
std::optional<Parameters> parameters_of(const config::ModelConfig& model) {
  try {
    Parameters parameters;
    for (plan::ParameterSpec& spec : plan::model_parameters(families::shape_of(model), 1, 0))
      parameters[std::move(spec.name)] = std::move(spec.shape);
    return parameters;
  } catch (const ConfigError&) {
    return std::nullopt;
  }
}

/// The names that one of them alone has, or both in other shapes.
std::vector<std::string> that_differ(const Parameters& a, const Parameters& b) {
  std::vector<std::string> names;
  for (const auto& [name, shape] : a)
    if (const auto other = b.find(name); other == b.end() || other->second != shape) names.push_back(name);
  for (const auto& [name, shape] : b)
    if (!a.contains(name)) names.push_back(name);
  return names;
}

/// Whether parameters that differ, `all`, are what tells of an option: with the other's value of it alone some of those
/// become others, and none of a layer does. What embeds tokens, heads a task or predicts tokens ahead may be missing,
/// new or longer.
bool told_by_shapes(const Parameters& ours, const config::ModelConfig& with_their_value,
                    const std::vector<std::string>& all) {
  const auto changed = parameters_of(with_their_value);
  if (!changed) return false;
  bool told = false;
  for (const std::string& name : that_differ(ours, *changed)) {
    if (std::ranges::find(all, name) == all.end()) continue;
    if (name.find(".layers.") != std::string::npos && !name.starts_with("mtp.")) return false;
    told = true;
  }
  return told;
}

/// The model as it is computed: sizes that were left at 0, which stands for what others come to, are filled in.
config::RunConfig with_all_sizes(const config::ModelConfig& model) {
  config::RunConfig run;
  run.model = model;
  const plan::ModelShape shape = families::shape_of(model);
  if (!shape.latents) {
    run.model.num_query_groups = shape.groups();
    run.model.kv_channels = shape.head();
  } else if (model.num_query_groups == 0) {  // a key of each head
    run.model.num_query_groups = model.num_attention_heads;
  }
  run.model.ffn_hidden_size = shape.ffn_hidden;
  if (shape.encoder_decoder()) run.model.decoder_num_layers = shape.num_layers - shape.encoder_layers;
  return run;
}

}  // namespace

std::unique_ptr<checkpoint::WeightSource> without_depths(const checkpoint::WeightSource& weights) {
  return std::make_unique<WithoutDepths>(weights);
}

bool is_foreign(const std::filesystem::path& folder) {
  const WeightFormat* format = find_format(folder);
  return format != nullptr && !format->native;
}

bool is_foreign_run(const std::filesystem::path& folder) {
  const WeightFormat* format = find_format(folder);
  return format != nullptr && !format->native && format->resumable != nullptr && format->resumable(folder);
}

std::filesystem::path foreign_run_in(const std::filesystem::path& folder) {
  if (is_foreign_run(folder)) return folder;
  const std::filesystem::path iteration = named_iteration(folder);
  return !iteration.empty() && is_foreign_run(iteration) ? iteration : std::filesystem::path();
}

std::unique_ptr<checkpoint::WeightSource> open_weights(const std::filesystem::path& folder) {
  return with_fix(families::kCopyAnew, [&] { return format_of(folder).weights(folder); });
}

config::ModelConfig model_config_of(const std::filesystem::path& folder) {
  return with_fix(families::kCopyAnew, [&] { return format_of(folder).model(folder); });
}

std::vector<NetworkDifference> differences(const config::ModelConfig& ours, const config::ModelConfig& theirs) {
  if (ours.architecture != theirs.architecture)  // whose options are others
    return {{"model.architecture", ours.architecture, theirs.architecture}};
  config::RunConfig our_run = with_all_sizes(ours), their_run = with_all_sizes(theirs);
  const Parameters parameters = parameters_of(our_run.model).value_or(Parameters());
  const std::vector<std::string> all = that_differ(parameters, parameters_of(their_run.model).value_or(Parameters()));
  const config::Fields our_fields = config::fields_of(our_run), their_fields = config::fields_of(their_run);
  std::vector<NetworkDifference> found;
  for (std::size_t i = 0; i < our_fields.fields.size(); ++i) {
    const config::Field &option = our_fields.fields[i], &other = their_fields.fields[i];
    if (option.meaning.affects != config::Affects::Weights || option.meaning.sizes_alone) continue;
    if (!config::is_read(option, our_fields) || !config::is_read(other, their_fields)) continue;
    const std::string value = config::plain_value(option.value), their_value = config::plain_value(other.value);
    if (value == their_value) continue;
    config::RunConfig changed = our_run;
    std::visit([&](auto* place) { *place = *std::get<decltype(place)>(other.value); },
               config::fields_of(changed).fields[i].value);
    if (!told_by_shapes(parameters, changed.model, all)) found.push_back({option.path, value, their_value});
  }
  return found;
}

std::vector<std::string> differences(const config::ModelConfig& model, const std::filesystem::path& folder) {
  std::vector<std::string> lines;
  for (const NetworkDifference& each : differences(model, model_config_of(folder)))
    lines.push_back(concat(each.option, ": ", each.ours, ", and ", each.theirs, " in the folder"));
  return lines;
}

void check_same_network(const config::ModelConfig& model, const std::filesystem::path& folder) {
  check_same_network(model, model_config_of(folder), folder);
}

void check_same_network(const config::ModelConfig& model, const config::ModelConfig& theirs,
                        const std::filesystem::path& folder) {
  std::string all, fix;
  for (const NetworkDifference& each : differences(model, theirs)) {
    all +=
        concat(all.empty() ? "" : "\n        ", each.option, ": ", each.ours, ", and ", each.theirs, " in the folder");
    fix += concat(fix.empty() ? "--" : " --", each.option, " ", each.theirs);
  }
  if (!all.empty())
    throw ConfigError(rule_got_fix(
        concat("The recipe must describe the network whose weights are in ", folder.string(), "."), all, fix));
}

}  // namespace megatron::interchange
