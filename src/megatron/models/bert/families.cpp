#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/families/hf_classes.h"
#include "megatron/families/hf_family.h"
#include "megatron/families/mapping_builder.h"
#include "megatron/models/bert/families/encoders.h"
#include "megatron/plan/parameters/parameters.h"

// BERTs as folders of Hugging Face: with the heads of their pretraining, or with that of a task. A BERT whose blocks
// begin with their norms (Shoeybi et al. 2019, figure 7 (b)) is transformers' MegatronBert.
namespace megatron::models::bert {

extern const families::HfFamily kRoberta, kModernBert;

namespace {

using namespace families;
using nlohmann::json;
using plan::ModelShape;

/// model_type of a MegatronBert.
constexpr const char* kMegatronBert = "megatron-bert";
/// What the names of transformers' classes begin with for the order of norms of the 2019 paper.
constexpr std::string_view kMegatron = "Megatron";

constexpr Class kClasses[] = {{"BertForSequenceClassification", "classes"},
                              {"BertForMultipleChoice", "options"},
                              {"BertForQuestionAnswering", "span"},
                              {"BertModel", "tokens"},
                              {"BertForPreTraining", "tokens"},
                              {"BertForMaskedLM", "tokens"}};

void read_bert(const json& object, JsonFields& fields, FolderConfig& folder) {
  const bool megatron = fields.text("model_type", "") == kMegatronBert;
  read_encoder_head(object, fields, folder, kClasses, megatron ? kMegatron : "");
  fields.must_be("position_embedding_type", "absolute");
  fields.must_be("tie_word_embeddings", true);
  config::ModelConfig& model = folder.model;
  model.architecture = "bert";
  model.apply_residual_connection_post_layernorm = !megatron;
  model.bert_binary_head =
      object.value("architectures", json()) != json::array({megatron ? "MegatronBertForMaskedLM" : "BertForMaskedLM"});
  read_encoder(fields, model);
  model.num_tokentypes = fields.size("type_vocab_size", kMaxWidth, 2);
  if (model.num_tokentypes == 1) model.bert_binary_head = false;  // no two segments
}

/// The class of transformers that has just the parts that the tensors are of, the heads of tasks aside.
const char* pretrained_class(const HasTensor& theirs) {
  if (theirs("cls.seq_relationship.weight")) return "BertForPreTraining";
  return theirs("cls.predictions.bias") ? "BertForMaskedLM" : "BertModel";
}

void write_bert(const FolderConfig& folder, const HasTensor& theirs, json& object) {
  const config::ModelConfig& model = folder.model;
  std::string name = pretrained_class(theirs);
  for (const Class& known : kClasses)
    if (model.head != "tokens" && model.head == known.head) name = known.theirs;
  const bool megatron = !model.apply_residual_connection_post_layernorm;
  object.update({{"model_type", megatron ? kMegatronBert : "bert"},
                 {"architectures", {concat(megatron ? kMegatron : "", name)}}});
  write_encoder(model, object);
  if (model.head == "classes") write_classes(folder, object);
}

/// The parts of a BERT without its encoder.
struct Parts {
  bool pooler = true, token_head = true, sentence_head = true;
  bool norms_first = false;  ///< MegatronBert's names: its blocks begin with a norm
};

/// Our names made of a BERT folder's tensors. Its blocks end with a norm; ours begin with it (model/block.h): the norm
/// of the embedding is the first layer's "input_layernorm", that of each layer's output the next one's, and the last
/// one's "encoder.final_layernorm". A MegatronBert has them where we have them. Heads: "lm_head.dense",
/// "lm_head.layer_norm", "output_layer.bias" (its matrix is the word embedding), "pooler.dense", "binary_head"; of a
/// task "task_head".
Mapping bert_table(const ModelShape& shape, const Parts& parts, const std::string& prefix) {
  MappingBuilder build;
  const std::int64_t h = shape.hidden;
  map_encoder(build, shape, prefix, parts.norms_first);
  if (parts.pooler) build.linear("pooler.dense", prefix + "pooler.dense", h, h);
  if (parts.token_head) {
    build.linear("lm_head.dense", "cls.predictions.transform.dense", h, h);
    build.norm("lm_head.layer_norm", "cls.predictions.transform.LayerNorm", shape);
    build.whole("output_layer.bias", "cls.predictions.bias", {shape.vocab});
  }
  if (parts.sentence_head) build.linear("binary_head", "cls.seq_relationship", 2, h);
  if (!shape.predicts_tokens())
    build.linear("task_head", shape.task_head == plan::Head::Span ? "qa_outputs" : "classifier", shape.head_rows(), h);
  return build.take();
}

/// The first BERTs call a norm's weight and bias gamma and beta.
Mapping with_first_names(Mapping mapping) {
  for (auto& [name, tensor] : mapping) {
    std::string& source = tensor.pieces.front().source;
    if (source.ends_with(".LayerNorm.weight")) source.replace(source.size() - 6, 6, "gamma");
    if (source.ends_with(".LayerNorm.bias")) source.replace(source.size() - 4, 4, "beta");
  }
  return mapping;
}

Mapping table(const ModelShape& shape, const HasTensor& has) {
  const std::string prefix = has("bert.embeddings.word_embeddings.weight") ? "bert." : "";
  Mapping mapping = bert_table(shape,
                               {.pooler = has(prefix + "pooler.dense.weight") && shape.task_head != plan::Head::Span,
                                .token_head = has("cls.predictions.bias"),
                                .sentence_head = has("cls.seq_relationship.weight"),
                                .norms_first = !shape.residual_after_norm},
                               prefix);
  return has(prefix + "embeddings.LayerNorm.gamma") ? with_first_names(std::move(mapping)) : mapping;
}

/// Which parts it has follows from the weights.
Mapping written_table(const ModelShape& shape, const HasTensor& has) {
  const Parts parts{.pooler = has("pooler.dense.weight"),
                    .token_head = has("output_layer.bias"),
                    .sentence_head = has("binary_head.weight"),
                    .norms_first = !shape.residual_after_norm};
  const bool has_head = parts.token_head || parts.sentence_head || !shape.predicts_tokens();
  return bert_table(shape, parts, has_head ? "bert." : "");
}

constexpr std::string_view kTypes[] = {"bert", kMegatronBert};

constexpr SecondName kSecondNames[] = {{"cls.predictions.decoder.weight", plan::kWordEmbedding},
                                       {"cls.predictions.decoder.bias", "output_layer.bias"}};

constexpr HfFamily kFamilies[] = {
    {.name = "bert",
     .architecture = "bert",
     .form = "a BERT with LayerNorm, learned_absolute positions, token types, biases, the activation gelu, tied "
             "embeddings and one key and value head a head",
     .model_types = kTypes,
     .read = read_bert,
     .holds = [](const config::ModelConfig& model,
                 const ModelShape& shape) { return is_encoder(model, shape) && model.position_offset == 0; },
     .write = write_bert,
     .table = table,
     .written_table = written_table,
     .needs_no_reading =
         [](const FolderConfig& folder, const std::string& name) {
           return name.ends_with("embeddings.position_ids") || name == "cls.predictions.decoder.weight" ||
                  name == "cls.predictions.decoder.bias" ||
                  (folder.model.head == "span" && name.starts_with("bert.pooler.dense."));  // where answers need none
         },
     .second_names = kSecondNames}};

/// `before`, `between`: the norms of what attention and the MLP read.
LayerNames layer_names(const std::string& layer, const std::string& before, const std::string& between) {
  const std::string self = layer + "attention.self.";
  return {{"input_layernorm", {before}},
          {"self_attention.linear_qkv", {self + "query", self + "key", self + "value"}},
          {"self_attention.linear_proj", {layer + "attention.output.dense"}},
          {"pre_mlp_layernorm", {between}},
          {"mlp.linear_fc1", {layer + "intermediate.dense"}},
          {"mlp.linear_fc2", {layer + "output.dense"}}};
}

}  // namespace

void read_encoder_head(const json& object, JsonFields& fields, FolderConfig& folder, std::span<const Class> classes,
                       std::string_view before) {
  const auto named = object.find("architectures");
  std::string head = "tokens", names;
  if (named != object.end() && !named->is_null()) {
    head.clear();
    for (const Class& known : classes) {
      const std::string name = concat(before, known.theirs);
      if (*named == json::array({name})) head = known.head;
      names += concat(names.empty() ? "[\"" : "\"], [\"", name);
    }
  }
  if (head.empty()) fields.refuse("architectures", names + "\"]");
  if (head == "classes") return read_classes(fields, folder);
  folder.model.head = head;
  if (head == "span" && read_labels(fields).size() != 2)
    fields.refuse("id2label", "two names, for the first and the last token");
}

void read_encoder(JsonFields& fields, config::ModelConfig& model) {
  model.num_layers = fields.size("num_hidden_layers", kMaxLayers);
  model.hidden_size = fields.size("hidden_size", kMaxWidth);
  model.num_attention_heads = fields.size("num_attention_heads", kMaxWidth);
  model.ffn_hidden_size = fields.size("intermediate_size", kMaxWidth);
  model.max_position_embeddings = fields.size("max_position_embeddings", kMaxPositions);
  model.vocab_size = fields.size("vocab_size", kMaxVocab);
  fields.must_be("hidden_act", "gelu");  // which the head of ours always has
  model.activation = "gelu";
  model.layernorm_epsilon = fields.number("layer_norm_eps", 1e-12);
  model.init_method_std = fields.number("initializer_range", 0.02);
  model.hidden_dropout = fields.number("hidden_dropout_prob", 0.1);
  model.attention_dropout = fields.number("attention_probs_dropout_prob", 0.1);
}

void write_encoder(const config::ModelConfig& model, json& object) {
  object.update({{"hidden_act", model.activation},
                 {"num_hidden_layers", model.num_layers},
                 {"hidden_size", model.hidden_size},
                 {"num_attention_heads", model.num_attention_heads},
                 {"intermediate_size", shape_of(model).ffn_hidden},
                 {"max_position_embeddings", model.position_offset + model.max_position_embeddings},
                 {"type_vocab_size", model.num_tokentypes},
                 {"layer_norm_eps", model.layernorm_epsilon},
                 {"hidden_dropout_prob", model.hidden_dropout},
                 {"attention_probs_dropout_prob", model.attention_dropout}});
}

void map_encoder(MappingBuilder& build, const ModelShape& shape, const std::string& prefix, bool norms_first) {
  const std::string embeddings = prefix + "embeddings.";
  const std::int64_t h = shape.hidden;
  build.whole("embedding.word_embeddings.weight", embeddings + "word_embeddings.weight", {shape.vocab, h});
  build.whole("embedding.position_embeddings.weight", embeddings + "position_embeddings.weight",
              {shape.position_offset + shape.max_positions, h});
  build.whole("embedding.tokentype_embeddings.weight", embeddings + "token_type_embeddings.weight",
              {shape.token_types, h});
  std::string last = embeddings + "LayerNorm";  // the layer before it ends with, or the embedding
  for (std::int64_t layer = 0; layer < shape.num_layers; ++layer) {
    const std::string theirs = concat(prefix, "encoder.layer.", layer, ".");
    build.layer(shape.layer(layer), norms_first ? layer_names(theirs, theirs + "attention.ln", theirs + "ln")
                                                : layer_names(theirs, last, theirs + "attention.output.LayerNorm"));
    last = theirs + "output.LayerNorm";
  }
  build.norm("encoder.final_layernorm", norms_first ? prefix + "encoder.ln" : last, shape);
}

bool is_encoder(const config::ModelConfig& model, const ModelShape& shape) {
  return model == config::AttentionVariant{} &&
         model == config::LayerVariant{.position_offset = model.position_offset} && !shape.rms_norm && !shape.gated &&
         shape.linear_bias && shape.learned_positions && shape.groups() == shape.num_heads &&
         shape.query_rows() == shape.hidden && shape.tied_output && shape.token_types > 0 && model.activation == "gelu";
}

constexpr const HfFamily* kRows[] = {&kFamilies[0], &kRoberta, &kModernBert};

extern const ModelFolders kFolders;
constinit const ModelFolders kFolders{.families = kRows};

}  // namespace megatron::models::bert
