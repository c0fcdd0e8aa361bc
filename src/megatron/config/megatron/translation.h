#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "megatron/config/megatron/arguments.h"
#include "megatron/config/megatron/translate.h"
#include "megatron/config/tables/model_kinds.h"

// How translate.cpp works: one command line on its way to a recipe, section by section, after Megatron-LM's
// validate_args().
namespace megatron::config {

/// a x b, or the largest number, which every rule refuses.
std::int64_t product(std::int64_t a, std::int64_t b);
int as_int(std::int64_t value);
bool read_integer(const std::string& word, std::int64_t& value);
bool read_float(const std::string& word, double& value);

struct Translation {
  const std::string& program;
  const MegatronArguments& args;
  const MegatronLaunch& launch;
  /// The file that the arguments are saved in, as validate_args() left them: lengths in samples and in iterations may
  /// both be there. "": they are a command line.
  std::string saved_in = {};
  std::string saved_fix = {};  ///< the fix of all errors of saved arguments
  RunConfig run = {};
  MegatronTranslation result = {};
  std::map<const MegatronFlag*, std::string> ignored = {};       ///< given, and why it has no effect
  std::vector<std::pair<std::string, std::string>> absent = {};  ///< words, and the feature they need
  std::string errors = {};

  /// The kind of model that the program trains (model.architecture): pretrain_gpt a gpt.
  std::string kind() const { return program.substr(program.find('_') + 1); }
  ModelTraits traits() const { return model_traits(kind()); }

  bool is_saved() const { return !saved_in.empty(); }
  void require(bool holds, const std::string& rule, const std::string& got, const std::string& fix);
  /// What must be given, as an integer; 1 where it is not, which is reported.
  std::int64_t needed(const char* name);
  void forbid_both(const char* one, const char* other);
  /// A flag that may be given and has no effect here, for a reason that the table cannot know.
  void ignore(const char* name, const std::string& why);
  /// A flag that may be given and whose value asks for what is not here.
  void miss(const char* name, const std::string& feature);
};

/// One error for all flags that ask for what is not here.
void report_absent(Translation& c);

void translate_model(Translation& c);
void translate_experts(Translation& c);  // needs the model
void translate_positions(Translation& c);
void translate_layout(Translation& c);
void translate_batches(Translation& c);  // needs the layout
void translate_data(Translation& c);
void translate_batch_steps(Translation& c);  // needs the batches and the data
void translate_tokenizer(Translation& c);
void translate_optimizer(Translation& c);  // needs the batches: the data type
void translate_schedule(Translation& c);   // needs the batches
void translate_recomputation(Translation& c);
void translate_checkpoints(Translation& c);
void translate_evaluation(Translation& c);  // needs the data
void translate_logs(Translation& c);

}  // namespace megatron::config
