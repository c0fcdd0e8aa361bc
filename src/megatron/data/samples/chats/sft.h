#pragma once
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "megatron/data/index/index_cache.h"
#include "megatron/data/samples/pack.h"
#include "megatron/text/chat_template.h"
#include "megatron/text/tokenizer.h"

// Conversations for supervised fine-tuning: JSON lines {"messages": [{"role": "user", "content": "…"}, …]}, also
// compressed, become a .bin/.idx pair in the cache, one document each, that PackedDataset reads.
namespace megatron::data {

/// The tokens of a conversation, encoded as one text; those that are not whole within what the assistant wrote are
/// stored as ~id. A token that stands for no byte of the text belongs to the bytes before it.
std::vector<std::int32_t> encode_chat(const text::RenderedChat& chat, text::Encoder& encoder);

/// Tokenizes the conversations of `path` into the cache unless that is done, and returns the prefix of the pair.
/// `cache_folder`: empty for cache/SFTDataset_indices beside the file. The names depend on the file's path, size and
/// time of change, on the tokenizer and on the template. Throws ConfigError naming file and line for a line that is no
/// conversation.
std::string build_chat_pair(const std::string& path, const text::Tokenizer& tokenizer,
                            const text::ChatTemplate& chat_template, const std::string& cache_folder,
                            const WaitMessage& say);

/// Throws ConfigError where the conversations `range` of a pair that build_chat_pair() has made of `path` have no token
/// to learn in the samples of PackedDataset, and tells `say` in a line how many of them such samples leave out. Reads
/// the conversations once.
void check_learned(const std::string& path, const IndexedDataset& pair, const SequenceRange& range,
                   std::int64_t seq_length, Packing packing, const WaitMessage& say);

}  // namespace megatron::data
