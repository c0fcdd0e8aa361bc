#pragma once
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "megatron/text/files/hugging_face/json_component.h"
#include "megatron/text/pipeline.h"

// The steps of tokenizer.json, both ways. What is read refuses by name a step, a member or a value that is not known.
namespace megatron::text {

std::vector<Normalizer> read_normalizers(const Component& component);
std::vector<PreTokenizer> read_pre_tokenizers(const Component& component);
std::vector<Decoder> read_decoders(const Component& component);

/// Null for none, the step for one, a Sequence for more. SentencePiece's own steps, which the format does not have, are
/// written under that name.
nlohmann::ordered_json to_json(const std::vector<Normalizer>& steps);
nlohmann::ordered_json to_json(const std::vector<PreTokenizer>& steps);
nlohmann::ordered_json to_json(const std::vector<Decoder>& steps);

}  // namespace megatron::text
