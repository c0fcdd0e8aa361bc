#include "megatron/train/inputs.h"

#include <algorithm>

#include "megatron/base/error.h"
#include "megatron/checkpoint/folder.h"
#include "megatron/checkpoint/model_state.h"
#include "megatron/checkpoint/weights.h"
#include "megatron/config/options.h"
#include "megatron/config/value.h"
#include "megatron/interchange/import.h"
#include "megatron/interchange/weights.h"
#include "megatron/plan/parameters.h"
#include "megatron/train/batches.h"
#include "megatron/train/run_state.h"

namespace megatron::train {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kTokensLookedAt = std::int64_t{1} << 22;  // some milliseconds

// Options that decide what the weights mean. Shapes alone would not show all of them.
constexpr const char* kArchitecture[] = {"model.num_layers",
                                         "model.hidden_size",
                                         "model.num_attention_heads",
                                         "model.ffn_hidden_size",
                                         "model.max_position_embeddings",
                                         "model.vocab_size",
                                         "model.untie_embeddings_and_output_weights",
                                         "model.layernorm_epsilon",
                                         "model.num_query_groups",
                                         "model.kv_channels",
                                         "model.normalization",
                                         "model.activation",
                                         "model.gated_linear_unit",
                                         "model.add_bias_linear",
                                         "model.add_qkv_bias",
                                         "model.position_embedding_type",
                                         "model.rotary_base",
                                         "model.rotary_percent",
                                         "model.rotary_interleaved",
                                         "model.rope_scaling_factor",
                                         "model.rope_low_freq_factor",
                                         "model.rope_high_freq_factor",
                                         "model.rope_original_positions"};
// Options that decide which samples come next: consumed samples of one order are not those of another.
constexpr const char* kOrderOfSamples[] = {"train.seed", "data.split", "data.seq_length"};

// Values of options by their path, as one types them.
class Values {
 public:
  explicit Values(config::RunConfig config) : config_(std::move(config)), fields_(config::fields_of(config_)) {}
  Values(const Values&) = delete;
  Values& operator=(const Values&) = delete;
  std::string operator[](const std::string& path) const {
    const auto found = std::find_if(fields_.fields.begin(), fields_.fields.end(),
                                    [&](const config::Field& field) { return field.path == path; });
    return config::plain_value(found->value);
  }

 private:
  config::RunConfig config_;
  config::Fields fields_;  // points into config_
};

void check_tokens(const data::IndexedDataset& data, std::int64_t vocab) {
  std::int64_t left = kTokensLookedAt;
  std::vector<std::int64_t> tokens;
  for (std::int64_t sequence = 0; sequence < data.size() && left > 0; ++sequence) {
    tokens.resize(static_cast<std::size_t>(std::min(left, data.length(sequence))));
    data.read(sequence, 0, tokens);
    for (const std::int64_t token : tokens)
      if (token < 0 || token >= vocab) fail_for_token(data.prefix(), token, concat("sequence ", sequence), vocab);
    left -= static_cast<std::int64_t>(tokens.size());
  }
}

void check_part(const plan::ResolvedRun& run, data::SplitPart part, const data::IndexedDataset& data) {
  const data::GptDatasetSpec spec = dataset_spec(run, part);
  const data::SequenceRange range = data::split_ranges(spec.split, data.size())[static_cast<std::size_t>(part)];
  data::check_split(part, spec.split, range, spec.index, data);
  std::int64_t tokens = 0;
  for (std::int64_t sequence = range.first; sequence < range.last; ++sequence) tokens += data.length(sequence);
  data::plan_gpt_index(spec.index, tokens);
}

/// The checkpoint that the run would go on from, as far as sizes tell: what ranks find out later they tell then.
void check_start(const fs::path& folder, const plan::ResolvedRun& run) {
  if (takes_weights_alone(run.config)) {
    interchange::check_is_gpt(folder, "train");
    checkpoint::compare_weights(*interchange::open_weights(folder), run.shape, run.config.checkpoint.load_strict);
    if (run.config.checkpoint.load_strict) interchange::check_same_network(run.config.model, folder);
    return;
  }
  std::string problems;
  for (const fs::path& candidate : checkpoint::candidates(folder)) {
    try {
      checkpoint::check_structure(candidate);
      check_checkpoint(candidate, run);
      return;
    } catch (const checkpoint::Damage& damage) {
      problems += (problems.empty() ? "" : "\n") + std::string(damage.what());
    }
  }
  throw ConfigError(problems);
}

}  // namespace

std::int64_t samples_of_a_validation(const config::RunConfig& config) {
  return config.train.eval_iters * config.train.global_batch_size;
}

data::GptDatasetSpec dataset_spec(const plan::ResolvedRun& run, data::SplitPart part) {
  const config::RunConfig& config = run.config;
  const bool trains = part == data::SplitPart::Train;
  const std::int64_t samples =
      trains ? run.train_samples
             : (config.train.train_iters / config.train.eval_interval + 1) * samples_of_a_validation(config);
  return {.prefix = config.data.data_path.at(0),
          .split = config.data.split,
          .part = part,
          .index = {.seq_length = config.data.seq_length, .seed = config.train.seed, .num_samples = samples},
          .cache_folder = config.data.data_cache_path};
}

fs::path save_folder(const config::RunConfig& config) {
  return config.checkpoint.save.empty() ? fs::path(config.train.out) / "checkpoints" : fs::path(config.checkpoint.save);
}

std::optional<fs::path> checkpoint_to_load(const config::RunConfig& config) {
  if (const fs::path own = save_folder(config); checkpoint::has_checkpoint(own)) return own;
  const fs::path named = config.checkpoint.load;
  if (named.empty()) return std::nullopt;
  for (const fs::path& folder : {named / "checkpoints", named})
    if (checkpoint::has_checkpoint(folder)) return folder;
  return named;  // an iter_ folder itself; or else an error of checkpoint::load that says what is missing
}

bool takes_weights_alone(const config::RunConfig& config) {
  const std::string& load = config.checkpoint.load;
  if (load.empty() || checkpoint::has_checkpoint(save_folder(config))) return false;
  return config.checkpoint.finetune || interchange::is_foreign(load);
}

std::vector<std::string> check_checkpoint(const fs::path& folder, const plan::ResolvedRun& run) {
  const fs::path found = checkpoint::find_checkpoint(folder);
  const Values saved(checkpoint::saved_recipe(found)), wanted(run.config);
  std::string errors;
  const auto add = [&](const std::string& error) { errors += (errors.empty() ? "" : "\n") + error; };
  for (const std::string path : kArchitecture)
    if (saved[path] != wanted[path])
      add(rule_got_fix(concat(path, " must be ", saved[path], ", as in the checkpoint ", found.string(), "."),
                       wanted[path], concat("--", path, "=", saved[path])));
  const auto specs = plan::gpt_parameters(run.shape, 1, 0);
  for (const auto& [name, tensor] : checkpoint::read_manifest(found).tensors)
    if (!name.starts_with("optimizer.") &&
        std::none_of(specs.begin(), specs.end(), [&n = name](const auto& spec) { return spec.name == n; }))
      add(rule_got_fix(concat("The model must use every weight of the checkpoint ", found.string(), "."),
                       concat("\"", name, "\", which it does not have")));
  if (!errors.empty()) throw ConfigError(errors);
  std::vector<std::string> warnings;
  for (const std::string path : kOrderOfSamples)
    if (saved[path] != wanted[path])
      warnings.push_back(concat("warning: ", path, " was ", saved[path], " and is now ", wanted[path],
                                ": samples come in another order than before the checkpoint"));
  return warnings;
}

void check_inputs(const plan::ResolvedRun& run) {
  const data::IndexedDataset data(run.config.data.data_path.at(0));
  check_part(run, data::SplitPart::Train, data);
  if (run.config.train.eval_interval > 0) check_part(run, data::SplitPart::Valid, data);
  check_tokens(data, run.shape.vocab);
  if (const auto folder = checkpoint_to_load(run.config)) check_start(*folder, run);
}

}  // namespace megatron::train
