#include "megatron/interchange/hugging_face.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/base/file.h"
#include "megatron/base/printable.h"
#include "megatron/checkpoint/folder.h"
#include "megatron/interchange/mapped_source.h"
#include "megatron/interchange/safetensors_folder.h"

namespace megatron::interchange {
namespace {

constexpr std::uint64_t kMaxConfigBytes = std::uint64_t{1} << 20;

/// Tensors that folders hold besides the weights: constants, and second names of tied matrices.
bool needs_no_reading(Family family, const FolderConfig& config, const std::string& name) {
  const auto ends = [&](std::string_view end) { return name.ends_with(end); };
  switch (family) {
    case Family::Gpt2:
      if (ends(".attn.bias") || ends(".attn.masked_bias")) return true;  // the causal mask
      break;
    case Family::Llama:
      if (ends(".rotary_emb.inv_freq")) return true;
      break;
    case Family::Bert:
      return ends("embeddings.position_ids") || name == "cls.predictions.decoder.weight" ||
             name == "cls.predictions.decoder.bias" ||
             (config.model.head == "span" && name.starts_with("bert.pooler.dense."));  // where answers need none
    case Family::T5:  // the last: of the first T5s, whose cross attention has none
      if (name == "encoder.embed_tokens.weight" || name == "decoder.embed_tokens.weight" ||
          ends("EncDecAttention.relative_attention_bias.weight"))
        return true;
      break;
  }
  return name == "lm_head.weight" && !config.model.untie_embeddings_and_output_weights;
}

/// The first BERTs call a norm's weight and bias gamma and beta.
Mapping with_first_names(Mapping mapping) {
  for (auto& [name, tensor] : mapping) {
    std::string& source = tensor.pieces.front().source;
    if (source.ends_with(".LayerNorm.weight")) source.replace(source.size() - 6, 6, "gamma");
    if (source.ends_with(".LayerNorm.bias")) source.replace(source.size() - 4, 4, "beta");
  }
  return mapping;
}

Mapping mapping_of(const FolderConfig& config, const SafetensorsFolder& raw) {
  const plan::GptShape shape = shape_of(config.model);
  const auto prefix = [&](const std::string& usual, const std::string& tensor) {
    return raw.shape(usual + tensor) != nullptr ? usual : "";
  };
  const auto has = [&](const std::string& tensor) { return raw.shape(tensor) != nullptr; };
  if (config.family == Family::Gpt2) return gpt2_mapping(shape, prefix("transformer.", "wte.weight"));
  if (config.family == Family::Llama) return llama_mapping(shape, prefix("model.", "embed_tokens.weight"));
  // transformers leaves out a head that is the embedding's matrix, whether it is scaled or not.
  if (config.family == Family::T5) return t5_mapping(shape, has("lm_head.weight") ? "lm_head.weight" : "shared.weight");
  const std::string bert = prefix("bert.", "embeddings.word_embeddings.weight");
  Mapping mapping = bert_mapping(shape,
                                 {.token_types = config.token_types,
                                  .pooler = has(bert + "pooler.dense.weight") && config.model.head != "span",
                                  .token_head = has("cls.predictions.bias"),
                                  .sentence_head = has("cls.seq_relationship.weight"),
                                  .norms_first = !config.model.apply_residual_connection_post_layernorm},
                                 bert);
  return has(bert + "embeddings.LayerNorm.gamma") ? with_first_names(std::move(mapping)) : mapping;
}

void check_all_are_used(const SafetensorsFolder& raw, const Mapping& mapping, const FolderConfig& config) {
  const auto used = source_shapes(mapping);
  std::string unused;
  std::size_t count = 0;
  for (const std::string& name : raw.tensors()) {
    if (used.contains(name) || needs_no_reading(config.family, config, name)) continue;
    if (++count <= 5) unused += concat(count == 1 ? "" : ", ", "\"", printable(name), "\"");
  }
  if (count > 5) unused += concat(" and ", count - 5, " more");
  if (count > 0)
    throw ConfigError(
        rule_got_fix(concat(raw.name(), ": every tensor must belong to the model that config.json describes."), unused,
                     "merge adapters and undo quantization first; a model with other parts cannot be read"));
}

}  // namespace

FolderConfig read_config(const std::filesystem::path& folder) {
  const auto path = folder / "config.json";
  return parse_config(read_file(path, kMaxConfigBytes), path.string());
}

std::unique_ptr<checkpoint::WeightSource> open_hugging_face(const std::filesystem::path& folder) {
  const FolderConfig config = read_config(folder);
  auto raw = std::make_shared<SafetensorsFolder>(folder);
  const std::int64_t layers = shape_of(config.model).num_layers;
  if (layers > static_cast<std::int64_t>(raw->tensors().size()))
    throw ConfigError(
        rule_got_fix(concat(folder.string(), ": must hold the tensors of ", layers, " layers, as config.json says."),
                     concat(raw->tensors().size(), " tensors")));
  Mapping mapping = mapping_of(config, *raw);
  check_all_are_used(*raw, mapping, config);
  return std::make_unique<MappedSource>(std::move(raw), std::move(mapping));
}

WeightFormat hugging_face_format() {
  namespace fs = std::filesystem;
  return {.name = "huggingface",
          .holder = "a Hugging Face folder (config.json, safetensors)",
          .models = "GPT-2, Llama, Mistral and Qwen2 without sliding windows, T5, BERT also with the head of a task",
          .detect =
              [](const fs::path& folder) {
                return fs::is_regular_file(folder / "config.json") && !checkpoint::has_checkpoint(folder);
              },
          .model = [](const fs::path& folder) { return read_config(folder).model; },
          .config = read_config,
          .weights = open_hugging_face,
          .labels = [](const fs::path& folder) { return read_config(folder).labels; },
          .config_json = [](const fs::path& folder) { return read_file(folder / "config.json"); },
          .output = "folder to write; must not exist, or be empty",
          .write = export_hugging_face};
}

}  // namespace megatron::interchange
