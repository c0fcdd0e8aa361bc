#pragma once
#include <array>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/base/files/gguf.h"
#include "megatron/base/named_path.h"
#include "megatron/base/text/nearest.h"

// What --help and messages say of the formats of weights (interchange/formats.h), and which words mean them.
namespace megatron::families {

/// The blocks that matrices are written and held in, by the names that options have for them.
inline constexpr std::pair<const char*, GgufType> kBlockTypes[] = {
    {"q8_0", GgufType::Q8_0}, {"q4_1", GgufType::Q4_1}, {"q4_0", GgufType::Q4_0}};

/// What a GGUF file may be written in besides, for other programs: llama.cpp's pieces of 32 whose scales share one.
inline constexpr std::pair<const char*, GgufType> kBlocksOf256 = {"q4_k", GgufType::Q4_K};

struct FormatWords {
  const char* name;         ///< in --format: "huggingface"
  const char* holder;       ///< what holds such weights, for messages: "a GGUF file"
  const char* models = "";  ///< which models it holds, for --help: "GPT-2, Llama, …"; "" where import does not read it
  // Of those that export writes:
  const char* output = "";                   ///< what --output names, for --help; "" of others
  const char* ending = "";                   ///< of an --output that means this format: ".gguf"
  std::span<const char* const> dtypes = {};  ///< of --dtype, besides fp32, bf16 and fp16
  bool keeps_training = false;               ///< ExportOptions::training
  bool pads_vocabulary = false;              ///< ExportOptions::padded_vocab_size
};

inline constexpr const char* kHuggingFaceModels = &(""
#define FAMILY(name, models) ", " models
#include "megatron/families/families.def"
                                                    )[2];

inline constexpr std::array kGgufDtypes = {kBlockTypes[0].first, kBlockTypes[1].first, kBlockTypes[2].first,
                                           kBlocksOf256.first};

inline constexpr FormatWords kNativeWords{.name = "megatron-cpp",
                                          .holder = "a run's folder (latest) or one checkpoint (manifest.json)"};
inline constexpr FormatWords kHuggingFaceWords{.name = "huggingface",
                                               .holder = "a Hugging Face folder (config.json, safetensors)",
                                               .models = kHuggingFaceModels,
                                               .output = "folder to write; must not exist, or be empty"};
inline constexpr FormatWords kMegatronWords{
    .name = "megatron-lm",
    .holder = "one of Megatron-LM's checkpoints (latest_checkpointed_iteration.txt, mp_rank_00/model_optim_rng.pt)",
    .models =
        "checkpoints of format torch: GPT, BERT and T5 with the state of training, any tensor and pipeline "
        "parallelism"};
inline constexpr FormatWords kTorchDistWords{
    .name = "torch_dist",
    .holder = "one of its distributed checkpoints (common.pt, .metadata)",
    .models =
        "Megatron-LM's distributed checkpoints (--ckpt-format torch_dist): GPT, BERT and T5 with the state of "
        "training, of any layout",
    .output = "folder to write, for Megatron-LM's --load; must not exist",
    .keeps_training = true,
    .pads_vocabulary = true};
inline constexpr FormatWords kGgufWords{
    .name = "gguf",
    .holder = "a GGUF file",
    .models = "Llama, Mistral, Qwen2 in F32, F16, BF16, Q8_0, Q6_K, or Q4 or Q5 with _0, _1 or _K",
    .output = "file to write (Llama, Mistral, Qwen2); must not exist",
    .ending = ".gguf",
    .dtypes = kGgufDtypes};
inline constexpr FormatWords kPeftWords{
    .name = "peft",
    .holder = "PEFT's folder of an adapter (adapter_config.json) whose model is on this machine",
    .models = "LoRA and DoRA of any model that can be read, merged into it",
    .output = "folder to write: the adapters alone"};

/// Those of all formats, in the order of weight_formats().
inline constexpr std::array kFormatWords = {kNativeWords,    kHuggingFaceWords, kMegatronWords,
                                            kTorchDistWords, kGgufWords,        kPeftWords};

/// What is wrong with a path that holds no weights that can be read; `fix`: what to name instead.
inline std::string no_weights(const std::filesystem::path& path, const std::string& fix) {
  std::vector<std::string> holders;
  for (const FormatWords& words : kFormatWords) holders.emplace_back(words.holder);
  return rule_got_fix(concat("Weights must be in ", listed(holders), "."), place_text(path), fix);
}
/// no_weights() where nothing is.
inline std::string no_weights(const std::filesystem::path& path) {
  const std::string near = nearest_beside(path);
  return no_weights(path, near.empty() ? "name a folder that is there" : near);
}

}  // namespace megatron::families
