#pragma once
#include <string>
#include <vector>

// What options and jobs must know of the kinds of models without describing one: models/NAME/config.cpp.
namespace megatron::config {

struct ModelTraits {
  bool causal = false;           ///< one stack, whose tokens see those before them alone
  bool encoder_decoder = false;  ///< two stacks, each with a length of its own
  bool reads_sentences = false;  ///< its samples are made of documents that are cut into sentences, and masked
  bool two_segments = false;     ///< samples, and rows of tasks, are [CLS] first [SEP] second [SEP]
};

/// Those of the kind that model.architecture names; of a name that the rules refuse those of the first.
const ModelTraits& model_traits(const std::string& architecture);

/// All names; the first is the default.
std::vector<std::string> model_kinds();
std::vector<std::string> kinds_with(bool ModelTraits::*trait);
/// kinds_with() for messages: "bert and t5".
std::string names_with(bool ModelTraits::*trait, const char* last = " and ");

}  // namespace megatron::config
