#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "megatron/base/files/gguf.h"
#include "megatron/base/ranks/launched_rank.h"
#include "megatron/config/run_config.h"
#include "megatron/plan/rules.h"
#include "megatron/recipe/model_flags.h"
#include "megatron/text/tokenizer.h"

// The runs of jobs that only compute forward with a model (generate, eval, serve, chat), by the network that its folder
// describes: what is wrong with them is known before libtorch is loaded.
namespace megatron::recipe {

/// What a job needs a model for: to write on from a text (one causal stack), or also to answer one (an
/// encoder-decoder); or to make a vector of one (an encoder).
enum class Writes : std::uint8_t { Texts, TextsOrAnswers, Embeddings };

/// Whether it is an encoder alone, which reads texts and writes none.
bool is_encoder(const config::ModelConfig& model);

/// Throws ConfigError that begins with `job` for a model, in `folder`, that does not write so.
void check_writes(const config::ModelConfig& model, const std::filesystem::path& folder, const std::string& job,
                  Writes writes);

/// The run of a network from another program's folder: a text may fill all positions.
config::RunConfig forward_config(const config::ModelConfig& model);

/// The head that a task needs, and its rows.
struct TaskModelOptions {
  const char* head;              ///< model.head
  std::int64_t num_classes;      ///< model.num_classes
  std::int64_t seq_length;       ///< of a row; 0: that of the fine-tuning, or as follows
  std::int64_t usual_length;     ///< of a folder that does not say, as far as the model has positions
  std::int64_t microbatch_size;  ///< 0: as many samples as hold 4096 tokens
};

/// Gives a run the head of `task`, and nothing for an optimizer to keep. `trained_here`: config.data.seq_length is that
/// of the model's training. Throws ConfigError that begins with `job` for flags that such a job does not take.
void set_task(config::RunConfig& config, const TaskModelOptions& task, bool trained_here, const ModelFlags& flags,
              const char* job);

/// The tokenizer that `flags` name, else the one in `beside`, the folder of files beside the weights, else the one that
/// `recipe`, which the model's run has saved, names. Throws ConfigError that begins with `job` where there is none.
text::Tokenizer forward_tokenizer(const ModelFlags& flags, const std::filesystem::path& beside,
                                  const config::RunConfig& recipe, const char* job);

/// The rows that a model of so many must have for `tokenizer`: as needed_rows(), but one for each token of a tokenizer
/// that `flags` name.
std::int64_t forward_rows(const ModelFlags& flags, std::int64_t rows, const text::Tokenizer& tokenizer);

/// What matrices are held as, by --weights; none: "full".
std::optional<GgufType> blocks_of(const ModelFlags& flags);

/// `config` on the ranks that `flags` ask for, or that a launcher has started (`place`), with a model that must have
/// `token_rows`. Throws ConfigError that begins with `job`, or names the options of `flags`, for broken rules, and for
/// --weights that the model cannot be held in.
plan::ResolvedRun resolve_forward(const ModelFlags& flags, config::RunConfig config, std::int64_t token_rows,
                                  const std::optional<LaunchedRank>& place, const char* job);

}  // namespace megatron::recipe
