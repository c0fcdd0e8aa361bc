#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "megatron/checkpoint/checkpoint.h"
#include "megatron/interchange/adapters/adapters.h"
#include "megatron/plan/rules.h"

// What a run is trained with besides its options, as its checkpoints keep it to be known again: digests of contents,
// whatever files are called, wherever they lie and in which format.
namespace megatron::train {

/// Empty: not known, or not used.
struct InputDigests {
  std::string tokenizer;          ///< text::Tokenizer::fingerprint()
  std::string vocabulary;         ///< of its tokens alone, in order
  std::int64_t tokens = 0;        ///< how many
  std::vector<std::string> data;  ///< a line for each file of each part, with its weight
  std::string base;               ///< the weights of lora.base, by samples of each, rounded to bf16

  bool operator==(const InputDigests&) const = default;
};

/// The metadata's name of their text.
inline constexpr const char* kInputs = interchange::kInputs;

/// "1234 bytes, XXH3 …" of a file: of all its bytes up to 1 MiB, of a larger one of its ends and 16 places between:
/// what looks at terabytes for a moment. Throws where it cannot be read.
std::string sampled_digest(const std::filesystem::path& path);

/// Of the run's files as they are now; of large ones by samples. What cannot be read stays unknown. Not collective.
InputDigests digest_inputs(const plan::ResolvedRun& run);
std::string to_text(const InputDigests& digests);

/// Those in a checkpoint's metadata; nothing where there are none, as in older checkpoints, or no whole ones.
std::optional<InputDigests> saved_inputs(const checkpoint::Metadata& metadata);

/// What has become of what both know.
struct InputChanges {
  bool other_vocabulary = false;  ///< a token has another number, or is gone; tokens that follow the others may be new
  bool other_splitting = false;   ///< the same vocabulary, in a tokenizer that is another
  bool other_base = false;
  bool same_base = false, same_data = false;  ///< known, and the same
  bool other_data = false;
};
InputChanges compare_inputs(const InputDigests& saved, const plan::ResolvedRun& run);

/// Whether the tokenizer in `folder` can be read and has the saved vocabulary.
bool has_saved_vocabulary(const InputDigests& saved, const std::filesystem::path& folder);

}  // namespace megatron::train
