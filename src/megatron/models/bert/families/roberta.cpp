#include <nlohmann/json.hpp>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/families/hf_classes.h"
#include "megatron/families/hf_family.h"
#include "megatron/models/bert/families/encoders.h"
#include "megatron/plan/parameters/parameters.h"

// RoBERTa and XLM-RoBERTa: BERT's layers, positions that are counted from the padding's id on, one type of tokens, no
// head for the order of segments.
namespace megatron::models::bert {
namespace {

using namespace families;
using nlohmann::json;
using plan::ModelShape;

constexpr std::string_view kRobertaPrefix = "Roberta", kXlmPrefix = "XLMRoberta";
constexpr const char *kRobertaType = "roberta", *kXlmType = "xlm-roberta";
constexpr std::int64_t kRobertaPadding = 1;  // where config.json names none
constexpr Class kRobertaClasses[] = {{"ForSequenceClassification", "classes"},
                                     {"ForMultipleChoice", "options"},
                                     {"ForQuestionAnswering", "span"},
                                     {"Model", "tokens"},
                                     {"ForMaskedLM", "tokens"}};

void read_roberta(const json& object, JsonFields& fields, FolderConfig& folder) {
  const bool xlm = fields.text("model_type", "") == kXlmType;
  read_encoder_head(object, fields, folder, kRobertaClasses, xlm ? kXlmPrefix : kRobertaPrefix);
  fields.must_be("position_embedding_type", "absolute");
  fields.must_be("tie_word_embeddings", true);
  config::ModelConfig& model = folder.model;
  read_encoder(fields, model);
  model.apply_residual_connection_post_layernorm = true;
  model.bert_binary_head = false;
  model.num_tokentypes = fields.size("type_vocab_size", kMaxWidth, 2);
  if (model.num_tokentypes != 1) fields.refuse("type_vocab_size", "1");
  const json& padding = fields.value("pad_token_id");
  if (!padding.is_null() &&
      (!padding.is_number_unsigned() || padding.get<std::uint64_t>() >= static_cast<std::uint64_t>(kMaxPositions)))
    fields.refuse("pad_token_id", "the id of a token, from which positions are counted");
  model.position_offset = (padding.is_null() ? kRobertaPadding : padding.get<std::int64_t>()) + 1;
  if (model.max_position_embeddings <= model.position_offset)
    fields.refuse("max_position_embeddings", "above pad_token_id + 1");
  model.max_position_embeddings -= model.position_offset;
}

void write_roberta(const FolderConfig& folder, const HasTensor& theirs, json& object) {
  const config::ModelConfig& model = folder.model;
  std::string name = theirs("lm_head.bias") ? "ForMaskedLM" : "Model";
  for (const Class& known : kRobertaClasses)
    if (model.head != "tokens" && model.head == known.head) name = known.theirs;
  object.update({{"model_type", kRobertaType},
                 {"architectures", {concat(kRobertaPrefix, name)}},
                 {"pad_token_id", model.position_offset - 1}});
  write_encoder(model, object);
  if (model.head == "classes") write_classes(folder, object);
}

/// Our names made of a folder's tensors: map_encoder()'s and those of heads. The pooled first token of classes is the
/// first half of their head.
Mapping roberta_table(const ModelShape& shape, const std::string& prefix, bool pooler, bool token_head) {
  MappingBuilder build;
  const std::int64_t h = shape.hidden;
  map_encoder(build, shape, prefix, /*norms_first=*/false);
  const bool classes = shape.task_head == plan::Head::Classes;
  if (pooler) build.linear("pooler.dense", classes ? "classifier.dense" : prefix + "pooler.dense", h, h);
  if (token_head) {
    build.linear("lm_head.dense", "lm_head.dense", h, h);
    build.norm("lm_head.layer_norm", "lm_head.layer_norm", shape);
    build.whole("output_layer.bias", "lm_head.bias", {shape.vocab});
  }
  if (!shape.predicts_tokens())
    build.linear("task_head",
                 classes                               ? "classifier.out_proj"
                 : shape.task_head == plan::Head::Span ? "qa_outputs"
                                                       : "classifier",
                 shape.head_rows(), h);
  return build.take();
}

Mapping read_table(const ModelShape& shape, const HasTensor& has) {
  const std::string prefix = has("roberta.embeddings.word_embeddings.weight") ? "roberta." : "";
  const bool classes = shape.task_head == plan::Head::Classes;
  return roberta_table(
      shape, prefix,
      shape.task_head != plan::Head::Span && has((classes ? "classifier" : prefix + "pooler") + ".dense.weight"),
      has("lm_head.bias"));
}

Mapping write_table(const ModelShape& shape, const HasTensor& has) {
  const bool token_head = has("output_layer.bias"), alone = !token_head && shape.predicts_tokens();
  return roberta_table(shape, alone ? "" : "roberta.", has("pooler.dense.weight"), token_head);
}

constexpr std::string_view kRobertaTypes[] = {kRobertaType, kXlmType};

constexpr SecondName kRobertaSecondNames[] = {{"lm_head.decoder.weight", plan::kWordEmbedding},
                                              {"lm_head.decoder.bias", "output_layer.bias"}};

}  // namespace

extern const HfFamily kRoberta;
constinit const HfFamily kRoberta{
    .name = "roberta",
    .architecture = "bert",
    .form = "a RoBERTa (BERT's original order of norms, a position_offset, one token type, no bert_binary_head)",
    .model_types = kRobertaTypes,
    .read = read_roberta,
    .holds =
        [](const config::ModelConfig& model, const ModelShape& shape) {
          return is_encoder(model, shape) && model.position_offset > 0 && shape.residual_after_norm &&
                 !model.bert_binary_head && shape.token_types == 1;
        },
    .write = write_roberta,
    .table = read_table,
    .written_table = write_table,
    .needs_no_reading =
        [](const FolderConfig& folder, const std::string& name) {
          const bool pooled = folder.model.head == "options" || folder.model.head == "tokens";
          return name.ends_with("embeddings.position_ids") || name.ends_with("embeddings.token_type_ids") ||
                 name.starts_with("lm_head.decoder.") || (!pooled && name.starts_with("roberta.pooler.dense."));
        },
    .second_names = kRobertaSecondNames};

}  // namespace megatron::models::bert
