#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "megatron/base/files/gguf.h"
#include "megatron/checkpoint/weights.h"
#include "megatron/families/hf_config.h"
#include "megatron/interchange/hugging_face/companions.h"

// A GGUF file of a Llama or Qwen2 as the Hugging Face folder that it says it was: a config.json, tensors under the
// names of that folder, q and k with their rows put back, a tokenizer. Each throws ConfigError naming file and entry
// for what is damaged, or would compute another result.
namespace megatron::interchange {

/// The names of a layer's parts in the file, and in the folder.
inline constexpr std::pair<const char*, const char*> kGgufLayer[] = {
    {"attn_norm", "input_layernorm"}, {"attn_q", "self_attn.q_proj"},      {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},   {"attn_output", "self_attn.o_proj"}, {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},    {"ffn_up", "mlp.up_proj"},           {"ffn_down", "mlp.down_proj"}};

/// Llama 3's scaling with low_freq_factor 1 and high_freq_factor 4, as every published Llama 3 has it.
struct Llama3Scaling {
  double factor = 1;
  std::int64_t original_positions = 0;
};
/// The one whose rope_factors() with this base differ from `factors` by no larger share of them than that; none where
/// there is no such.
std::optional<Llama3Scaling> find_llama3_scaling(std::span<const float> factors, double base, double difference);

/// By how much Llama 3's scaling slows each pair of a head of `head` numbers down: what rope_freqs.weight holds.
std::vector<float> rope_factors(const config::ModelConfig& model, std::int64_t head);

/// config.json of the model in `path`; entries of its architecture that are not known are refused by name.
std::string gguf_config_json(const std::filesystem::path& path);
/// As above, for a file whose bytes are in memory.
std::string gguf_config_json(const Gguf& file, std::string_view bytes);
families::FolderConfig read_gguf_config(const std::filesystem::path& path);

/// The weights under our names, as open_weights(); blocks (Q8_0, …) as the float32 numbers that they stand for ("F32").
std::unique_ptr<checkpoint::WeightSource> open_gguf(const std::filesystem::path& path);

bool gguf_has_tokenizer(const std::filesystem::path& path);
/// As read_token_ids(); a token that ends a turn (eot) ends a text too.
TokenIds gguf_token_ids(const std::filesystem::path& path);
/// Writes the files of its tokenizer into `folder`: how many.
int write_gguf_companions(const std::filesystem::path& path, const std::filesystem::path& folder);

}  // namespace megatron::interchange
