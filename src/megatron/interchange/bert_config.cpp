#include "megatron/interchange/bert_config.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "megatron/base/error.h"

namespace megatron::interchange {
namespace {

using nlohmann::json;

constexpr std::int64_t kMaxClasses = 1 << 16;
/// What the names of transformers' classes begin with for the order of norms of the 2019 paper.
constexpr std::string_view kMegatron = "Megatron";
constexpr const char* kOneLabel = "single_label_classification";

/// A class of transformers and the head that it has (model.head).
struct Class {
  const char *theirs, *head;
};
constexpr Class kClasses[] = {{"BertForSequenceClassification", "classes"},
                              {"BertForMultipleChoice", "options"},
                              {"BertForQuestionAnswering", "span"},
                              {"BertModel", "tokens"},
                              {"BertForPreTraining", "tokens"},
                              {"BertForMaskedLM", "tokens"}};

/// `megatron`: of a MegatronBert.
std::string head_of(const json& object, const JsonFields& fields, bool megatron) {
  const auto named = object.find("architectures");
  if (named == object.end() || named->is_null()) return "tokens";
  std::string names;
  for (const Class& known : kClasses) {
    const std::string name = concat(megatron ? kMegatron : "", known.theirs);
    if (*named == json::array({name})) return known.head;
    names += concat(names.empty() ? "[\"" : "\"], [\"", name);
  }
  fields.refuse("architectures", names + "\"]");
}

/// The names of classes 0, 1, …; transformers has two where a folder says nothing.
std::vector<std::string> labels_in(JsonFields& fields) {
  const json& named = fields.value("id2label");
  if (named.is_null())
    return std::vector<std::string>(static_cast<std::size_t>(fields.size("num_labels", kMaxClasses, 2)));
  if (!named.is_object() || named.size() > kMaxClasses) fields.refuse("id2label", "the names of the classes");
  fields.ignore({"num_labels"});
  std::vector<std::string> labels;
  for (std::size_t i = 0; i < named.size(); ++i) {
    const auto found = named.find(std::to_string(i));
    if (found == named.end() || !found->is_string()) fields.refuse("id2label", R"({"0": "a name", "1": …})");
    labels.push_back(found->get<std::string>());
  }
  return labels;
}

void read_head(const json& object, JsonFields& fields, FolderConfig& folder, bool megatron) {
  const std::string head = head_of(object, fields, megatron);
  if (head == "classes") return read_classes(fields, folder);
  folder.model.head = head;
  if (head == "span" && labels_in(fields).size() != 2)
    fields.refuse("id2label", "two names, for the first and the last token");
}

}  // namespace

void read_classes(JsonFields& fields, FolderConfig& folder) {
  std::vector<std::string> labels = labels_in(fields);
  if (labels.size() < 2) fields.refuse("id2label", "the names of two classes or more");
  fields.must_be("problem_type", kOneLabel);
  folder.model.head = "classes";
  folder.model.num_classes = static_cast<std::int64_t>(labels.size());
  if (fields.has("id2label")) folder.labels = std::move(labels);
}

void write_classes(const FolderConfig& folder, json& object) {
  object["problem_type"] = kOneLabel;
  json names = json::object(), numbers = json::object();
  for (std::int64_t i = 0; i < folder.model.num_classes; ++i) {
    const auto place = static_cast<std::size_t>(i);
    const std::string label = place < folder.labels.size() ? folder.labels[place] : concat("LABEL_", i);
    names[std::to_string(i)] = label;
    numbers[label] = i;
  }
  object["id2label"] = std::move(names);
  object["label2id"] = std::move(numbers);
}

void read_bert(const json& object, JsonFields& fields, FolderConfig& folder) {
  const bool megatron = fields.text("model_type", "") == kMegatronBert;
  read_head(object, fields, folder, megatron);
  fields.must_be("position_embedding_type", "absolute");
  fields.must_be("tie_word_embeddings", true);
  config::ModelConfig& model = folder.model;
  model.architecture = "bert";
  model.apply_residual_connection_post_layernorm = !megatron;
  model.bert_binary_head =
      object.value("architectures", json()) != json::array({megatron ? "MegatronBertForMaskedLM" : "BertForMaskedLM"});
  model.num_layers = fields.size("num_hidden_layers", kMostLayers);
  model.hidden_size = fields.size("hidden_size", kMostWidth);
  model.num_attention_heads = fields.size("num_attention_heads", kMostWidth);
  model.ffn_hidden_size = fields.size("intermediate_size", kMostWidth);
  model.max_position_embeddings = fields.size("max_position_embeddings", kMostPositions);
  model.vocab_size = fields.size("vocab_size", kMostVocab);
  fields.must_be("hidden_act", "gelu");  // which the head of ours always has
  model.activation = "gelu";
  model.layernorm_epsilon = fields.number("layer_norm_eps", 1e-12);
  model.init_method_std = fields.number("initializer_range", 0.02);
  model.hidden_dropout = fields.number("hidden_dropout_prob", 0.1);
  model.attention_dropout = fields.number("attention_probs_dropout_prob", 0.1);
  model.num_tokentypes = fields.size("type_vocab_size", kMostWidth, 2);
  folder.token_types = model.num_tokentypes;
}

void write_bert(const FolderConfig& folder, const std::string& pretrained, json& object) {
  const config::ModelConfig& model = folder.model;
  std::string name = pretrained;
  for (const Class& known : kClasses)
    if (model.head != "tokens" && model.head == known.head) name = known.theirs;
  const bool megatron = !model.apply_residual_connection_post_layernorm;
  object.update({{"model_type", megatron ? kMegatronBert : "bert"},
                 {"architectures", {concat(megatron ? kMegatron : "", name)}},
                 {"hidden_act", model.activation},
                 {"num_hidden_layers", model.num_layers},
                 {"hidden_size", model.hidden_size},
                 {"num_attention_heads", model.num_attention_heads},
                 {"intermediate_size", shape_of(model).ffn_hidden},
                 {"max_position_embeddings", model.max_position_embeddings},
                 {"type_vocab_size", folder.token_types},
                 {"layer_norm_eps", model.layernorm_epsilon},
                 {"hidden_dropout_prob", model.hidden_dropout},
                 {"attention_probs_dropout_prob", model.attention_dropout}});
  if (model.head == "classes") write_classes(folder, object);
}

}  // namespace megatron::interchange
