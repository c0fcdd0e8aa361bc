#pragma once
#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

#include "megatron/comm/agreement.h"
#include "megatron/comm/group.h"
#include "megatron/config/options.h"
#include "megatron/plan/rules.h"

// What ranks that were started apart must have in common before they train, or compute, together.
namespace megatron::train {

/// Options and their values, in the order of their declaration; without those that may differ between ranks.
comm::Facts option_facts(const config::Fields& fields);

/// The versions of the program and of libtorch, the options, and the sizes of the grid. Reads no file.
comm::Facts recipe_facts(const plan::ResolvedRun& run);

/// The tokenizer and the files that the run trains, validates and tests on, tokens by sampled_digest()
/// (input_digests.h). Never throws: why something cannot be read is a fact too.
comm::Facts input_facts(const config::RunConfig& config);

/// "1234 bytes, XXH3 …".
std::string digest_of(std::span<const std::byte> bytes);
/// "file PATH" and the digest of a file, which is read whole; for a folder, the number and total size of its files and
/// a digest of their names and contents, of those above 64 MiB by samples of each MiB; where nothing is there, a text
/// that says so. Never throws.
comm::Fact file_fact(const std::filesystem::path& path);

/// The fact `name`, equal on ranks that see the same model in `folder`: of a checkpoint its iteration and a digest of
/// its manifest, of a folder of another program the digest of file_fact(). Never throws.
comm::Fact model_fact(const std::string& name, const std::filesystem::path& folder);

/// Throws comm::AgreedError on every rank where two of them were started with different recipes, program versions,
/// tokenizers or data, or see different checkpoints where rank 0 would resume. Collective over `world`; nothing is
/// written.
void require_equal_runs(const plan::ResolvedRun& run, const comm::Group& world);

}  // namespace megatron::train
