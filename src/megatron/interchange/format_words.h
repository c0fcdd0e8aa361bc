#pragma once
#include <array>
#include <span>

#include "megatron/interchange/gguf_blocks.h"

// What --help and messages say of the formats of weights, and which words mean them. No torch here, and nothing to
// link: it is said before libtorch is loaded.
namespace megatron::interchange {

struct FormatWords {
  const char* name;         ///< in --format: "huggingface"
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
#include "megatron/interchange/hugging_face/families.def"
                                                    )[2];

inline constexpr std::array kGgufDtypes = {kBlockTypes[0].first, kBlockTypes[1].first, kBlockTypes[2].first,
                                           kBlocksOf256.first};

inline constexpr FormatWords kNativeWords{.name = "megatron-cpp"};
inline constexpr FormatWords kHuggingFaceWords{
    .name = "huggingface", .models = kHuggingFaceModels, .output = "folder to write; must not exist, or be empty"};
inline constexpr FormatWords kMegatronWords{
    .name = "megatron-lm",
    .models =
        "checkpoints of format torch: GPT, BERT and T5 with the state of training, any tensor and pipeline "
        "parallelism"};
inline constexpr FormatWords kTorchDistWords{
    .name = "torch_dist",
    .models =
        "Megatron-LM's distributed checkpoints (--ckpt-format torch_dist): GPT, BERT and T5 with the state of "
        "training, of any layout",
    .output = "folder to write, for Megatron-LM's --load; must not exist",
    .keeps_training = true,
    .pads_vocabulary = true};
inline constexpr FormatWords kGgufWords{
    .name = "gguf",
    .models = "Llama, Mistral, Qwen2 in F32, F16, BF16, Q8_0, Q6_K, or Q4 or Q5 with _0, _1 or _K",
    .output = "file to write (Llama, Mistral, Qwen2); must not exist",
    .ending = ".gguf",
    .dtypes = kGgufDtypes};
inline constexpr FormatWords kPeftWords{.name = "peft",
                                        .models = "LoRA and DoRA of any model that can be read, merged into it",
                                        .output = "folder to write: the adapters alone"};

/// Those of all formats, in the order of weight_formats().
inline constexpr std::array kFormatWords = {kNativeWords,    kHuggingFaceWords, kMegatronWords,
                                            kTorchDistWords, kGgufWords,        kPeftWords};

}  // namespace megatron::interchange
