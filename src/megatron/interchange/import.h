#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "megatron/families/hf_config.h"
#include "megatron/text/tokenizer.h"

namespace megatron::interchange {

struct ImportOptions {
  std::string dtype;  ///< "float32", "bfloat16", "float16"; empty: each tensor's own. With it weights alone are taken
  bool weights_only = false;
};

/// Makes `output` a folder of checkpoints of ours with one that holds what is in `folder` (of another program): of
/// a run that can be resumed its weights, optimizer's state, counters and recipe, at its iteration; else at iteration 0
/// the weights and the recipe of their network. Together with it are the files of its
/// tokenizer and, of a run, recipe.toml. Holds a few MiB of the
/// tensors at a time. `output` must not hold checkpoints. Returns the iteration.
std::int64_t import_weights(const std::filesystem::path& folder, const std::filesystem::path& output,
                            const ImportOptions& options);

/// The configuration with which the weights in `folder`, of any kind, are exported: of a checkpoint of ours the network
/// of its recipe, and the token ids of its tokenizer or of the folder that it was imported from.
families::FolderConfig export_config(const std::filesystem::path& folder);

/// The tokens that end a text of the model in `folder`: eos_token_id of the files beside the weights or of the
/// config.json that they were imported from, of adapters those of their base. A model that was trained here ends
/// at the end of documents of `tokenizer` too (Tokenizer::eod_id(), and "<|endoftext|>"), as its documents did; and so
/// does one whose folder names no end.
std::vector<std::int64_t> end_tokens(const std::filesystem::path& folder, const text::Tokenizer& tokenizer);

/// The tokens that frame what the T5 in `folder` reads and writes.
struct AnswerFrame {
  std::int64_t start = 0;                ///< with which its decoder begins
  std::vector<std::int64_t> ends;        ///< that end an answer
  std::optional<std::int64_t> text_end;  ///< with which a text that it reads ends; none: with its last word
};

/// As the folder's files, or those that the weights were imported from, name them; a text ends with the published
/// models' </s> where that is one of the ends. Of a model that was trained here those of its samples, whose texts end
/// with their last word. Throws ConfigError where `tokenizer` has not what the latter need.
AnswerFrame answer_frame(const std::filesystem::path& folder, const text::Tokenizer& tokenizer);

}  // namespace megatron::interchange
