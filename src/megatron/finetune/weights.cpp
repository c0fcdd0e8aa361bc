#include "megatron/finetune/weights.h"

#include <algorithm>
#include <iterator>

#include "megatron/base/error.h"
#include "megatron/base/text/nearest.h"
#include "megatron/interchange/hugging_face/labels.h"
#include "megatron/interchange/weights.h"
#include "megatron/train/resume/run_state.h"

namespace megatron::finetune {
namespace {

bool begins_with_one_of(const std::string& name, std::initializer_list<const char*> prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(), [&](const char* prefix) { return name.starts_with(prefix); });
}

}  // namespace

std::vector<std::string> check_weights(const std::filesystem::path& folder, const plan::ResolvedRun& run) {
  config::ModelConfig theirs = interchange::model_config_of(folder);
  const bool other_head = interchange::has_other_head(theirs, run.config.model);
  if (other_head) {
    theirs.head = run.config.model.head;
    theirs.num_classes = run.config.model.num_classes;
  }
  interchange::check_same_network(run.config.model, theirs, folder);
  const auto report = checkpoint::compare_weights(*interchange::open_weights_for(folder, run.config.model), run.shape,
                                                  /*strict=*/false);
  std::vector<std::string> lost, misplaced, messages;
  if (other_head) messages.push_back(concat("note: the head in ", folder.string(), " is of another task and left out"));
  std::ranges::copy_if(report.missing, std::back_inserter(lost), [](const std::string& name) {
    return !begins_with_one_of(name, {"task_head.", "pooler."});
  });
  std::ranges::copy_if(report.unexpected, std::back_inserter(misplaced), [](const std::string& name) {
    return !begins_with_one_of(name, {"task_head.", "pooler.", "lm_head.", "output_layer.", "binary_head.", "mtp."});
  });
  if (!lost.empty() || !misplaced.empty())
    throw ConfigError(
        rule_got_fix(concat("The weights in ", folder.string(), " must be those of the recipe's model."),
                     concat("missing: ", lost.empty() ? "none" : listed(lost, ", "),
                            "; without a place: ", misplaced.empty() ? "none" : listed(misplaced, ", ")),
                     "the model options that the weights were trained with, or none: --load brings them"));
  if (!report.missing.empty()) messages.push_back("initialized: " + listed(report.missing, ", "));
  if (!report.unexpected.empty()) messages.push_back("without a place here: " + listed(report.unexpected, ", "));
  return messages;
}

void check_labels(const std::filesystem::path& folder, const std::vector<std::string>& labels) {
  std::vector<std::string> theirs = interchange::labels_of(folder);
  for (std::string& label : theirs)
    std::ranges::transform(label, label.begin(),
                           [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  std::vector<std::string> ours = labels, sorted = theirs;
  std::ranges::sort(ours);
  std::ranges::sort(sorted);
  if (sorted != ours || theirs == labels) return;
  throw ConfigError(rule_got_fix(
      concat("The classes of the model in ", folder.string(), " must be ", listed(labels, ", "), ", in this order."),
      listed(theirs, ", "), "put the rows of its classifier and its id2label into it"));
}

void load_weights(const std::filesystem::path& folder, train::Engine& engine, const plan::ResolvedRun& run) {
  train::load_weights(*interchange::open_weights_for(folder, run.config.model), engine, run.shape, /*strict=*/false);
}

}  // namespace megatron::finetune
