#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "megatron/text/tokenizer.h"

// What belongs to a model beside its weights: the files of its tokenizer and of text generation. A run and an imported
// checkpoint keep them beside the checkpoints, so that generation and export find them. No torch here.
namespace megatron::interchange {

/// bos_token_id, eos_token_id, pad_token_id and decoder_start_token_id as JSON values; of those that a folder names.
using TokenIds = std::map<std::string, std::string>;

/// Whether a tokenizer's files, of any kind that text::Tokenizer::load() reads, lie in `folder`.
bool has_tokenizer(const std::filesystem::path& folder);

/// Where the files beside the weights in `folder` lie. Of a folder of ours: beside its checkpoints, in the run's folder
/// above them, or where the run was written (train.out of its recipe); of others the folder itself. Empty where no
/// tokenizer is found.
std::filesystem::path companion_folder(const std::filesystem::path& folder);

/// The ids that generation_config.json of `folder` names, where it does not those of config.json. Each is null, a
/// whole number or a list of them; throws ConfigError naming the file for anything else.
TokenIds read_token_ids(const std::filesystem::path& folder);

/// The ids of one entry: none, one or several. Throws ConfigError where it holds something else.
std::vector<std::int64_t> ids_of(const TokenIds& ids, const std::string& name);

/// Copies the files of a tokenizer, of text generation and of sentence-transformers' pooling that `from` has; where
/// that leaves no generation_config.json, writes one of the ids of read_token_ids(from) if they have an end. Returns
/// how many files.
int copy_companions(const std::filesystem::path& from, const std::filesystem::path& to);

/// A run's folder `out` keeps what makes text of its model's tokens, as `data.tokenizer` may change or go. A model that
/// was loaded, from `loaded` where that is not empty, brings the files beside it (its ends of texts, its chat template)
/// where its tokenizer is this.
void keep_tokenizer(const text::Tokenizer& tokenizer, const std::filesystem::path& out,
                    const std::filesystem::path& loaded);

}  // namespace megatron::interchange
