#pragma once
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "megatron/checkpoint/weights.h"
#include "megatron/families/format_words.h"
#include "megatron/families/hf_config.h"
#include "megatron/interchange/training_state.h"

namespace megatron::interchange {

struct ExportOptions {
  /// "float32", "bfloat16", "float16" or one of the format's own (FormatWords::dtypes); empty: each tensor's own
  std::string dtype;
  /// Where tokenizer and generation files are copied from; empty: none are.
  std::filesystem::path tokenizer;
  /// Where the run stood that the weights are of, for a format that keeps it (FormatWords::keeps_training); null: the
  /// weights alone are written.
  const TrainingState* training = nullptr;
  /// Rows of the vocabulary, for a format that can have more than tokens (FormatWords::pads_vocabulary); 0: as many.
  std::int64_t padded_vocab_size = 0;
  std::uint64_t shard_bytes = std::uint64_t{5} << 30;  ///< of one safetensors file at most, unless a tensor is larger
};

/// A format of weights: how it is recognised, read and written. What reads weights of any kind, imports, exports, or
/// lists formats in --help and messages goes through this table: a new format is a file with such a row, its words in
/// format_words.h, and a line in formats.cpp.
struct WeightFormat {
  families::FormatWords words;

  // Reading. All are null for a format that is only written. Each throws ConfigError that names file and field.
  bool (*detect)(const std::filesystem::path& folder) = nullptr;
  config::ModelConfig (*model)(const std::filesystem::path& folder) = nullptr;      ///< as model_config_of()
  families::FolderConfig (*config)(const std::filesystem::path& folder) = nullptr;  ///< as export_config()
  std::unique_ptr<checkpoint::WeightSource> (*weights)(const std::filesystem::path& folder) = nullptr;
  /// Where the run stood that saved the folder, with the optimizer's state or without; nothing where it holds weights
  /// alone. Null: so does every folder.
  std::optional<TrainingState> (*training)(const std::filesystem::path& folder, bool with_optimizer) = nullptr;
  /// Whether training() has something, by its counters alone. Null: no folder has.
  bool (*resumable)(const std::filesystem::path& folder) = nullptr;
  bool knows_training = true;  ///< model() has dropout and what weights were drawn with
  /// As companion_folder(). Null: the files beside the weights lie in the folder itself.
  std::filesystem::path (*companions)(const std::filesystem::path& folder) = nullptr;
  std::vector<std::string> (*labels)(const std::filesystem::path& folder) = nullptr;  ///< null: it names no classes
  /// The text of the folder's config.json, which says what a recipe cannot: import keeps it. Null: it has none.
  std::string (*config_json)(const std::filesystem::path& folder) = nullptr;
  bool native = false;  ///< our own checkpoints, which have a recipe and may have a state of training

  // Writing: null for a format that is only read.
  /// Whether it holds the depths of multi-token prediction of such a model. Null: of none.
  bool (*holds_depths)(const families::FolderConfig& config) = nullptr;
  /// Writes `weights` of the model `config`; `output` appears whole or not at all. Throws ConfigError, before anything
  /// is written, for a model that the format cannot hold.
  void (*write)(const checkpoint::WeightSource& weights, const families::FolderConfig& config,
                const std::filesystem::path& output, const ExportOptions& options) = nullptr;
};

/// All formats; the first that can be written is the one that export writes unless another is asked for.
std::span<const WeightFormat> weight_formats();

/// The format of what `folder` holds, judged by the files that are there; null where it is none that can be read.
const WeightFormat* find_format(const std::filesystem::path& folder);

/// find_format(); throws ConfigError, which lists the formats, instead of null.
const WeightFormat& format_of(const std::filesystem::path& folder);

/// Where the run stood that saved `folder`, of any kind; nothing where it holds weights alone. `with_optimizer` false:
/// without the optimizer's state, which may be stored in a way that cannot be read. Throws ConfigError for what is
/// damaged.
std::optional<TrainingState> training_state_of(const std::filesystem::path& folder, bool with_optimizer = true);

}  // namespace megatron::interchange
