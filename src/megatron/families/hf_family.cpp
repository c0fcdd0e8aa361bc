#include "megatron/families/hf_family.h"

#include <vector>

#include "megatron/base/error.h"
#include "megatron/plan/parameters/parameters.h"

#define MEGATRON_MODEL(name)                    \
  namespace megatron::models::name {            \
  extern const families::ModelFolders kFolders; \
  }
#include "megatron/models/kinds.def"
#undef MEGATRON_MODEL

namespace megatron::families {
namespace {

/// What to do with a model that no such folder can hold.
constexpr const char* kKeepOurs = "leave it a checkpoint of this program: generate, eval and train --load read it";

std::vector<const HfFamily*> all_rows() {
  std::vector<const HfFamily*> rows;
#define MEGATRON_MODEL(name) \
  for (const HfFamily* family : models::name::kFolders.families) rows.push_back(family);
#include "megatron/models/kinds.def"
#undef MEGATRON_MODEL
  return rows;
}

}  // namespace

std::span<const HfFamily* const> hf_families() {
  static const std::vector<const HfFamily*> rows = all_rows();
  return rows;
}

const HfFamily& hf_family(std::string_view name) {
  for (const HfFamily* family : hf_families())
    if (name == family->name) return *family;
  throw std::logic_error(concat("no family of Hugging Face's models is called ", name));
}

const HfFamily* find_family(const config::ModelConfig& model) {
  if ((model.head != "tokens" && model.head != "classes" && config::model_traits(model.architecture).causal) ||
      model.use_mup)
    return nullptr;
  const plan::ModelShape shape = shape_of(model);
  for (const HfFamily* family : hf_families())
    if (model.architecture == family->architecture && family->experts == shape.experts.has_value() &&
        family->holds(model, shape))
      return family;
  return nullptr;
}

const HfFamily& family_of(const config::ModelConfig& model) {
  if (const HfFamily* family = find_family(model)) return *family;
  if (model.head != "tokens" && model.head != "classes" && config::model_traits(model.architecture).causal)
    throw ConfigError(
        rule_got_fix("A GPT that is exported must have its output layer, or classes: transformers has no "
                     "other head for it.",
                     concat("model.head ", model.head), kKeepOurs));
  if (model.use_mup)
    throw ConfigError(rule_got_fix("Other programs' folders hold models without model.use_mup: they scale nothing.",
                                   "model.use_mup true", kKeepOurs));
  const plan::ModelShape shape = shape_of(model);
  std::string forms;
  for (const HfFamily* family : hf_families()) {
    if (model.architecture != family->architecture) continue;
    forms += concat(forms.empty() ? "" : " or ", family->form);
  }
  throw ConfigError(rule_got_fix(
      concat("A Hugging Face folder can hold ", forms, "."),
      concat("normalization ", model.normalization, ", position_embedding_type ", model.position_embedding_type,
             ", rotary_percent ", model.rotary_percent, ", rotary_interleaved ", model.rotary_interleaved,
             ", activation ", model.activation, ", gated_linear_unit ", model.gated_linear_unit ? "true" : "false",
             ", add_bias_linear ", model.add_bias_linear ? "true" : "false", ", qk_layernorm ", model.qk_layernorm,
             ", sliding_window ", model.sliding_window, ", norm_position ", model.norm_position,
             ", apply_layernorm_1p ", model.apply_layernorm_1p, ", parallel_residual ", model.parallel_residual,
             ", scale_embeddings ", model.scale_embeddings, ", num_query_groups ", shape.groups(), " of ",
             shape.num_heads, " heads of ", shape.head(), ", num_tokentypes ", model.num_tokentypes,
             ", apply_residual_connection_post_layernorm ", model.apply_residual_connection_post_layernorm),
      kKeepOurs));
}

bool is_tied_head(const FolderConfig& folder, const std::string& name) {
  return name == folder.family->head && !folder.model.untie_embeddings_and_output_weights;
}

const char* second_name_of(const FolderConfig& folder, const std::string& name) {
  if (folder.model.head != "tokens") return nullptr;  // of other tasks nothing reads an output layer
  if (is_tied_head(folder, name)) return plan::kWordEmbedding;
  for (const auto& [theirs, ours] : folder.family->second_names)
    if (name == theirs) return ours;
  return nullptr;
}

}  // namespace megatron::families
