#include "megatron/families/hf_config.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/base/text/json.h"
#include "megatron/families/hf_family.h"
#include "megatron/families/json.h"
#include "megatron/families/json_fields.h"
#include "megatron/plan/rules.h"

namespace megatron::families {
namespace {

using nlohmann::json;

constexpr std::int64_t kMaxLayersTimesGroups = 1 << 20, kMaxLayersTimesExperts = 1 << 18;

constexpr const char* kDecoderStart = "decoder_start_token_id";
constexpr const char* kTokenIds[] = {"bos_token_id", "eos_token_id", "pad_token_id", kDecoderStart};

/// What all families have and no result depends on; what must have one value.
void common_fields(JsonFields& fields, bool encoder_decoder) {
  fields.ignore({"_name_or_path",
                 "architectures",
                 "model_type",
                 "chunk_size_feed_forward",
                 "dtype",
                 "torch_dtype",
                 "id2label",
                 "label2id",
                 "output_attentions",
                 "output_hidden_states",
                 "output_past",
                 "problem_type",
                 "return_dict",
                 "transformers_version",
                 "use_cache",
                 "task_specific_params",
                 "gradient_checkpointing",
                 "torchscript",
                 "use_bfloat16",
                 "classifier_dropout",
                 "pretraining_tp",
                 "tokenizer_class",
                 "prefix",
                 "finetuning_task",
                 "transformers.js_config",
                 "_attn_implementation_autoset",
                 "attn_implementation",
                 "is_llama_config",
                 "unsloth_version",
                 "unsloth_fixed",
                 "sep_token_id"});
  // Defaults of text generation, which transformers 4 wrote here.
  fields.ignore({"bad_words_ids",
                 "begin_suppress_tokens",
                 "diversity_penalty",
                 "do_sample",
                 "early_stopping",
                 "encoder_no_repeat_ngram_size",
                 "exponential_decay_length_penalty",
                 "forced_bos_token_id",
                 "forced_eos_token_id",
                 "length_penalty",
                 "max_length",
                 "min_length",
                 "no_repeat_ngram_size",
                 "num_beam_groups",
                 "num_beams",
                 "num_return_sequences",
                 "output_scores",
                 "remove_invalid_values",
                 "repetition_penalty",
                 "return_dict_in_generate",
                 "suppress_tokens",
                 "temperature",
                 "top_k",
                 "top_p",
                 "typical_p",
                 "tf_legacy_loss"});
  fields.must_be("is_encoder_decoder", encoder_decoder);
  fields.must_be("add_cross_attention", false);
  fields.must_be("is_decoder", false);
  fields.must_be("pruned_heads", json::object());
  fields.must_be("cross_attention_hidden_size", nullptr);
  fields.must_be("tie_encoder_decoder", false);
}

/// The row whose folders have that model_type.
const HfFamily& family_of_type(const std::string& type, const JsonFields& fields) {
  std::vector<std::string_view> known;
  for (const HfFamily* family : hf_families()) {
    for (const std::string_view theirs : family->model_types) {
      if (type == theirs) return *family;
      known.push_back(theirs);
    }
  }
  std::string names;
  for (std::size_t i = 0; i < known.size(); ++i)
    names += concat(i == 0 ? "" : i + 1 < known.size() ? ", " : " or ", known[i]);
  fields.refuse("model_type", names);
}

json common_json(const FolderConfig& folder, const std::string& dtype) {
  json object = {{"dtype", dtype},
                 {"torch_dtype", dtype},
                 {"initializer_range", folder.model.init_method_std},
                 {"vocab_size", folder.model.vocab_size},
                 {"tie_word_embeddings", !folder.model.untie_embeddings_and_output_weights},
                 {"use_cache", true}};
  for (const char* key : kTokenIds) {
    if (key == kDecoderStart && !config::model_traits(folder.model.architecture).encoder_decoder) continue;
    const auto found = folder.token_ids.find(key);
    object[key] = found == folder.token_ids.end() ? json() : parse_json(found->second);
  }
  return object;
}

}  // namespace

FolderConfig parse_config(std::string_view text, const std::string& file) {
  const json object = parse_json_object(text, file);
  JsonFields fields(object, file);
  const std::string type = fields.text("model_type", "");
  FolderConfig folder;
  folder.family = &family_of_type(type, fields);
  folder.model.architecture = folder.family->architecture;
  folder.family->read(object, fields, folder);
  folder.model.make_vocab_size_divisible_by = 1;
  for (const char* key : kTokenIds)
    if (const json& id = fields.value(key); !id.is_null()) folder.token_ids[key] = id.dump();
  common_fields(fields, config::model_traits(folder.model.architecture).encoder_decoder);
  fields.finish();
  check_heads(folder.model, file);
  if (!(folder.model.layernorm_epsilon > 0))
    throw ConfigError(
        rule_got_fix(concat(file, ": the norms' epsilon must be above 0."), concat(folder.model.layernorm_epsilon)));
  return folder;
}

void check_heads(const config::ModelConfig& model, const std::string& file) {
  const std::int64_t groups = model.num_query_groups > 0 ? model.num_query_groups : model.num_attention_heads;
  if (model.num_attention_heads % groups != 0)
    throw ConfigError(rule_got_fix(concat(file, ": the attention heads must be a multiple of the key and value heads."),
                                   concat(model.num_attention_heads, " and ", groups)));
  if (model.kv_channels == 0 && !model.multi_latent_attention && model.hidden_size % model.num_attention_heads != 0)
    throw ConfigError(rule_got_fix(concat(file, ": the hidden size must be a multiple of the attention heads."),
                                   concat(model.hidden_size, " and ", model.num_attention_heads)));
  if ((model.num_layers + model.decoder_num_layers) * groups > kMaxLayersTimesGroups)
    throw ConfigError(
        rule_got_fix(concat(file, ": layers times key and value heads must be at most ", kMaxLayersTimesGroups, "."),
                     concat(model.num_layers, " x ", groups)));
  if ((model.num_layers + model.decoder_num_layers) * model.num_experts > kMaxLayersTimesExperts)
    throw ConfigError(rule_got_fix(concat(file, ": layers times experts must be at most ", kMaxLayersTimesExperts, "."),
                                   concat(model.num_layers, " x ", model.num_experts)));
}

plan::ModelShape shape_of(const config::ModelConfig& model) {
  config::ModelConfig unpadded = model;
  unpadded.make_vocab_size_divisible_by = 1;
  if (unpadded.ffn_hidden_size == 0) unpadded.ffn_hidden_size = 4 * model.hidden_size;
  plan::ModelShape shape = plan::model_shape(unpadded, 1);
  // A folder has these besides the head of a task.
  shape.tied_output = !model.untie_embeddings_and_output_weights;
  shape.sentence_head = shape.masked_lm_head && model.bert_binary_head;
  return shape;
}

std::string config_json(const FolderConfig& folder, const std::string& dtype, const HasTensor& theirs) {
  json object = common_json(folder, dtype);
  folder.family->write(folder, theirs, object);
  return object.dump(2) + "\n";
}

}  // namespace megatron::families
