#include "megatron/interchange/adapters/peft.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/files/atomic_folder.h"
#include "megatron/base/files/file.h"
#include "megatron/base/text/printable.h"
#include "megatron/checkpoint/files/dtypes.h"
#include "megatron/checkpoint/files/folder.h"
#include "megatron/checkpoint/files/safetensors.h"
#include "megatron/families/hf_family.h"
#include "megatron/families/json.h"
#include "megatron/families/json_fields.h"
#include "megatron/interchange/formats.h"
#include "megatron/interchange/hugging_face/companions.h"
#include "megatron/interchange/hugging_face/safetensors_folder.h"
#include "megatron/interchange/import.h"
#include "megatron/interchange/stored_tensor.h"
#include "megatron/interchange/weights.h"

namespace megatron::interchange {
namespace fs = std::filesystem;
namespace {

using nlohmann::json;

constexpr const char *kConfig = "adapter_config.json", *kMatrices = "adapter_model.safetensors";
constexpr const char* kPrefix = "base_model.model.";
constexpr const char *kA = ".lora_A.weight", *kB = ".lora_B.weight", *kMagnitude = ".lora_magnitude_vector";
constexpr std::uint64_t kMaxConfigBytes = std::uint64_t{1} << 20;
constexpr std::int64_t kMaxRank = 1 << 16;

json read_peft_config(const fs::path& folder) {
  return families::parse_json_object(read_file(folder / kConfig, kMaxConfigBytes), (folder / kConfig).string(),
                                     "save the adapter again");
}

/// Fields that are read here or change no result.
const std::set<std::string>& known_fields() {
  static const std::set<std::string> known = {"peft_type",      "r",
                                              "lora_alpha",     "lora_dropout",
                                              "use_rslora",     "use_dora",
                                              "bias",           "task_type",
                                              "auto_mapping",   "peft_version",
                                              "revision",       "base_model_name_or_path",
                                              "target_modules", "exclude_modules",
                                              "fan_in_fan_out", "init_lora_weights",
                                              "megatron_core",  "qalora_group_size",
                                              "runtime_config", "inference_mode"};
  return known;
}

bool is_unset(const json& value) {
  return value.is_null() || value == false || ((value.is_object() || value.is_array()) && value.empty());
}

plan::Lora read_lora(const fs::path& folder) {
  const json object = read_peft_config(folder);
  families::JsonFields fields(object, (folder / kConfig).string());
  fields.must_be("peft_type", "LORA");
  fields.must_be("bias", "none");
  const json how = object.value("init_lora_weights", json());
  if (how.is_string() && how != "gaussian" && how != "eva" && how != "orthogonal")
    throw ConfigError(rule_got_fix(
        concat((folder / kConfig).string(), ": init_lora_weights must leave the model's weights as they are."),
        printable(how.get<std::string>()),
        "an adapter whose init_lora_weights is true, false, gaussian, eva or orthogonal"));
  for (const auto& [key, value] : object.items())
    if (!known_fields().contains(key) && !is_unset(value))
      fields.refuse(key, "null: adapters of this program are A and B of one rank, magnitudes, and nothing else");
  plan::Lora lora{.rank = fields.size("r", kMaxRank),
                  .alpha = fields.number("lora_alpha", 8),
                  .dropout = fields.number("lora_dropout", 0),
                  .rslora = fields.flag("use_rslora", false),
                  .dora = fields.flag("use_dora", false)};
  if (!(lora.alpha > 0)) fields.refuse("lora_alpha", "above 0");
  return lora;
}

/// The folder's family, or one that holds the model.
const families::HfFamily& family_of_folder(const families::FolderConfig& config) {
  return config.family != nullptr ? *config.family : families::family_of(config.model);
}

/// Our names made of theirs.
families::Mapping written_mapping(const families::FolderConfig& config) {
  return family_of_folder(config).written_table(families::shape_of(config.model),
                                                [](const std::string&) { return true; });
}

/// The matrices of a folder under our names.
class PeftMatrices final : public checkpoint::WeightSource {
 public:
  PeftMatrices(const fs::path& folder, const families::FolderConfig& model, AdapterUse use, bool dora)
      : raw_(folder, kMatrices) {
    std::set<std::string> used;
    for (const PeftPart& part : peft_parts(model)) {
      const std::string a = concat(kPrefix, part.module, kA), b = concat(kPrefix, part.module, kB),
                        magnitude = concat(kPrefix, part.module, kMagnitude);
      const auto *a_shape = raw_.shape(a), *b_shape = raw_.shape(b);
      if (a_shape == nullptr || b_shape == nullptr || a_shape->size() != 2 || b_shape->size() != 2) continue;
      if (use == AdapterUse::Training && !used.insert(a).second)
        throw ConfigError(
            rule_got_fix(concat(name(), ": an adapter to be trained must be of one part of a layer here."),
                         concat(printable(part.module), ", which holds several"),
                         "merge it: megatron checkpoint export --load FOLDER --output TO"));
      used.insert(a);
      used.insert(b);
      const std::int64_t last = part.rows.empty() ? -1 : *std::ranges::max_element(part.rows);
      if (last >= b_shape->at(0))
        throw ConfigError(
            rule_got_fix(concat(name(), ": \"", b, "\" must have the rows of its layer."), concat(b_shape->at(0))));
      entries_[part.a] = {a, *a_shape, {}};
      entries_[part.b] = {b, *b_shape, part.rows};
      if (dora) {
        const auto* const shape = raw_.shape(magnitude);
        if (shape == nullptr || *shape != std::vector{b_shape->at(0)})
          throw ConfigError(rule_got_fix(
              concat(name(), ": with use_dora \"", magnitude, "\" must have a number for each row of its B."),
              shape == nullptr ? "no such tensor" : "another shape", "save the adapter again"));
        used.insert(magnitude);
        entries_[part.magnitude] = {magnitude, *shape, part.rows};
      }
      if (part.rows.empty()) continue;
      for (const std::string& of : {part.b, part.magnitude})
        if (const auto entry = entries_.find(of); entry != entries_.end())
          entry->second.shape[0] = static_cast<std::int64_t>(part.rows.size());
    }
    for (const std::string& tensor : raw_.tensors())
      if (!used.contains(tensor))
        throw ConfigError(rule_got_fix(concat(name(), ": every tensor must be an adapter of a layer of the model."),
                                       concat("\"", printable(tensor), "\""),
                                       "name the folder of the model that it was trained on"));
  }

  std::string name() const override { return raw_.name(); }
  std::vector<std::string> tensors() const override {
    std::vector<std::string> names;
    for (const auto& [name, entry] : entries_) names.push_back(name);
    return names;
  }
  const std::vector<std::int64_t>* shape(const std::string& tensor) const override {
    const auto found = entries_.find(tensor);
    return found == entries_.end() ? nullptr : &found->second.shape;
  }
  std::string dtype(const std::string& tensor) const override { return raw_.dtype(entries_.at(tensor).theirs); }
  void read(const std::string& tensor, const checkpoint::Box& box, const at::Tensor& into) const override {
    const Entry& entry = entries_.at(tensor);
    if (entry.rows.empty()) return raw_.read(entry.theirs, box, into);
    checkpoint::Box row = box;
    row.shape[0] = 1;
    for (std::int64_t i = 0; i < box.shape[0]; ++i) {
      row.offset[0] = entry.rows.at(static_cast<std::size_t>(box.offset[0] + i));
      raw_.read(entry.theirs, row, into.narrow(0, i, 1));
    }
  }

 private:
  struct Entry {
    std::string theirs;
    std::vector<std::int64_t> shape, rows;
  };
  SafetensorsFolder raw_;
  std::map<std::string, Entry> entries_;
};

/// The shortest names by which PEFT finds the adapted modules and no others of the model's, `all`.
json target_modules(const std::set<std::string>& all, const std::vector<PeftPart>& adapted) {
  const auto ends = [](const std::string& module, int parts) {
    std::size_t at = module.size();
    for (int i = 0; i < parts && at != std::string::npos && at > 0; ++i) at = module.rfind('.', at - 1);
    return at == std::string::npos ? module : module.substr(at + 1);
  };
  std::set<std::string> modules, names;
  for (const PeftPart& part : adapted) modules.insert(part.module);
  for (int parts = 1; names != modules; ++parts) {
    names.clear();
    for (const std::string& module : modules) names.insert(ends(module, parts));
    const auto count =
        std::ranges::count_if(all, [&](const std::string& module) { return names.contains(ends(module, parts)); });
    if (count == std::ssize(modules)) break;
  }
  return names;
}

/// Modules with a matrix: those that PEFT could adapt, and embeddings.
std::set<std::string> modules_of(const families::FolderConfig& config) {
  std::set<std::string> modules;
  for (const auto& [tensor, shape] : families::source_shapes(written_mapping(config)))
    if (shape.size() == 2) modules.insert(tensor.substr(0, tensor.rfind(".weight")));
  return modules;
}

/// What PEFT calls a model's task, after which its class is chosen; null: none of its classes.
json task_type(const config::ModelConfig& model) {
  const config::ModelTraits& traits = config::model_traits(model.architecture);
  if (traits.encoder_decoder) return "SEQ_2_SEQ_LM";
  return traits.causal ? json("CAUSAL_LM") : json();
}

void write_peft(const checkpoint::WeightSource& weights, const families::FolderConfig& config, const fs::path& folder,
                const ExportOptions& options) {
  const auto* const adapted = dynamic_cast<const AdaptedWeights*>(&weights);
  if (adapted == nullptr)
    throw ConfigError(rule_got_fix("--format peft writes adapters, of a run with lora.rank.",
                                   concat(weights.name(), ", a whole model"), "--format huggingface"));
  AtomicFolder::check(folder);
  const checkpoint::WeightSource& matrices = *adapted->adapter().matrices;
  const plan::Lora& lora = adapted->adapter().lora;
  std::vector<PeftPart> written;
  for (const PeftPart& part : peft_parts(config)) {
    if (matrices.shape(part.a) == nullptr) continue;
    if (family_of_folder(config).fuses_experts && part.a.find(".local_experts.") != std::string::npos)
      throw ConfigError(rule_got_fix(
          "PEFT has one adapter for all experts of a layer of such a model: adapters of each cannot be written.",
          part.module, "--format huggingface, which merges them"));
    if (!part.rows.empty())
      throw ConfigError(rule_got_fix(concat("PEFT has one adapter for all of ", part.module,
                                            ", which are several here: such adapters cannot be "
                                            "written."),
                                     concat(part.part.name, " of its rows"),
                                     "--format huggingface, which merges them"));
    written.push_back(part);
  }
  std::vector<checkpoint::SafetensorsEntry> entries;
  std::map<std::string, std::string> ours;
  for (const PeftPart& part : written) {
    std::vector<std::pair<std::string, const char*>> tensors = {{part.a, kA}, {part.b, kB}};
    if (lora.dora) tensors.emplace_back(part.magnitude, kMagnitude);
    for (const auto& [name, matrix] : tensors) {
      const std::string theirs = concat(kPrefix, part.module, matrix);
      const at::ScalarType type = scalar_type(options.dtype.empty() ? matrices.dtype(name) : options.dtype, "--dtype");
      entries.push_back({.name = theirs, .dtype = checkpoint::dtype_name(type), .shape = *matrices.shape(name)});
      ours[theirs] = name;
    }
  }
  AtomicFolder output(folder);
  std::string header;
  const auto placed = checkpoint::make_safetensors(entries, {{"format", "pt"}}, header);
  AtomicFile file(output.temporary_path() / kMatrices);
  file.write(header);
  for (const auto& entry : placed.tensors) {
    const at::Tensor tensor = at::empty(entry.shape, scalar_type(entry.dtype, entry.name));
    matrices.read(ours.at(entry.name), {std::vector<std::int64_t>(entry.shape.size(), 0), entry.shape}, tensor);
    file.write({static_cast<const std::byte*>(tensor.const_data_ptr()), static_cast<std::size_t>(tensor.nbytes())});
  }
  file.commit();
  const json object = {{"peft_type", "LORA"},
                       {"task_type", task_type(config.model)},
                       {"base_model_name_or_path", adapted->base_folder()},
                       {"r", lora.rank},
                       {"lora_alpha", lora.alpha},
                       {"lora_dropout", lora.dropout},
                       {"use_rslora", lora.rslora},
                       {"use_dora", lora.dora},
                       {"bias", "none"},
                       {"fan_in_fan_out", std::ranges::any_of(written, &PeftPart::transposed)},
                       {"init_lora_weights", true},
                       {"inference_mode", true},
                       {"modules_to_save", nullptr},
                       {"target_modules", target_modules(modules_of(config), written)}};
  write_file(output.temporary_path() / kConfig, object.dump(2) + "\n");
  output.commit();
}

}  // namespace

std::vector<PeftPart> peft_parts(const families::FolderConfig& config) {
  const plan::ModelShape shape = families::shape_of(config.model);
  const families::Mapping mapping = written_mapping(config);
  const auto theirs = families::source_shapes(mapping);
  std::vector<PeftPart> parts;
  for (std::int64_t number = 0; number < shape.num_layers; ++number) {
    const plan::LayerSpec layer = shape.layer(number);
    for (const plan::Branch& branch : layer.branches)
      for (const plan::Linear& linear : branch.linears(layer.hidden))
        for (const plan::ProjectionSlice& part : plan::projection_slices(layer, linear, 1)) {
          const families::MappedTensor& weight = mapping.at(layer.prefix + linear.name + ".weight");
          const std::size_t outputs = weight.transposed ? 1 : 0;
          PeftPart own{.part = part,
                       .a = plan::adapter_name(layer, linear, part, "A"),
                       .b = plan::adapter_name(layer, linear, part, "B"),
                       .magnitude = plan::magnitude_name(layer, linear, part),
                       .module = {},
                       .transposed = weight.transposed};
          std::string source;
          for (const families::MappedSlice& piece : weight.pieces)
            for (std::int64_t group = 0; group < part.groups; ++group) {
              const std::int64_t begin = group * part.group_outputs + part.offset;
              const std::int64_t from = std::max(begin, piece.to[0]),
                                 to = std::min(begin + part.length, piece.to[0] + piece.shape[0]);
              for (std::int64_t row = from; row < to; ++row)
                own.rows.push_back(piece.from[outputs] + row - piece.to[0]);
              if (from < to) source = piece.source;
            }
          bool in_order = std::ssize(own.rows) == theirs.at(source)[outputs];
          for (std::size_t i = 0; in_order && i < own.rows.size(); ++i)
            in_order = own.rows[i] == static_cast<std::int64_t>(i);
          if (in_order) own.rows.clear();
          own.module = source.substr(0, source.rfind(".weight"));
          parts.push_back(std::move(own));
        }
  }
  return parts;
}

bool is_peft(const fs::path& folder) {
  return fs::is_regular_file(folder / kConfig) && !fs::exists(folder / "config.json") &&
         !checkpoint::has_checkpoint(folder);
}

std::string peft_base(const fs::path& folder) {
  constexpr const char* kKey = "base_model_name_or_path";
  const json name = read_peft_config(folder).value(kKey, json());
  // As it is named, or within the adapters' folder.
  const fs::path named = name.is_string() ? name.get<std::string>() : "";
  for (const fs::path& base : {named, folder / named})
    if (!named.empty() && find_format(base) != nullptr && !is_peft(base)) return base.string();
  throw ConfigError(rule_got_fix(
      concat((folder / kConfig).string(), ": ", kKey, " must name the folder of the model that was adapted."),
      name.is_string() ? printable(name.get<std::string>()) + ", which is no model on this machine" : "no name",
      concat("download the model and set ", kKey, " to its folder; or train on: --lora.base MODEL --load ",
             folder.string())));
}

OpenedAdapter open_peft(const fs::path& folder, const config::ModelConfig& model, const fs::path& base,
                        AdapterUse use) {
  plan::Lora lora = read_lora(folder);
  families::FolderConfig of_base;
  if (!base.empty()) of_base.family = export_config(base).family;
  of_base.model = model;
  return {std::make_shared<const PeftMatrices>(folder, of_base, use, lora.dora), std::move(lora)};
}

WeightFormat peft_format() {
  return {
      .words = families::kPeftWords,
      .detect = is_peft,
      .model = [](const fs::path& folder) { return model_config_of(peft_base(folder)); },
      .config = [](const fs::path& folder) { return format_of(peft_base(folder)).config(peft_base(folder)); },
      .weights = [](const fs::path& folder) { return open_adapted(folder, peft_base(folder)); },
      .knows_training = false,
      .companions =
          [](const fs::path& folder) { return has_tokenizer(folder) ? folder : companion_folder(peft_base(folder)); },
      .write = write_peft};
}

}  // namespace megatron::interchange
