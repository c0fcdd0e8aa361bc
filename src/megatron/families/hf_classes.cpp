#include "megatron/families/hf_classes.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "megatron/base/error.h"

namespace megatron::families {
namespace {

using nlohmann::json;

constexpr std::int64_t kMaxClasses = 1 << 16;
constexpr const char* kOneLabel = "single_label_classification";

}  // namespace

std::vector<std::string> read_labels(JsonFields& fields) {
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

void read_classes(JsonFields& fields, FolderConfig& folder) {
  std::vector<std::string> labels = read_labels(fields);
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

}  // namespace megatron::families
