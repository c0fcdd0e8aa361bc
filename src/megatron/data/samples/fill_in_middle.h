#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "megatron/text/tokenizer.h"

namespace megatron::data {

/// Fill-in-the-middle (Bavarian et al. 2022), as Megatron-LM's GPTFIMDataset does it to a sample: each document of the
/// sample, or the part of one that is in it, is cut at two characters into prefix, middle and suffix, whose order is
/// changed so that the model learns to write the middle from what stands around it.
struct FillInMiddleOptions {
  double rate = 0.5;  ///< of documents that are changed
  double spm_rate =
      0.5;  ///< of these, those written <prefix><suffix>S<middle>PM; the others <prefix>P<suffix>S<middle>M
  double fragment_rate = 0.5;  ///< of the fragments of a document that `split` separates, once the document is chosen
  std::int32_t prefix = -1, middle = -1, suffix = -1;  ///< the tokens that mark the parts
  std::int32_t pad = -1;                               ///< fills a sample that has become shorter
  std::int32_t eod = -1;                               ///< ends documents
  std::int32_t split = -1;                             ///< separates fragments (files of a repository); -1: none does
  std::string no_prefix = {};  ///< a text that begins with this stays as it is; empty: none does
};

/// Changes samples. What becomes of a sample is a function of the stream's key and the sample's number alone (Philox),
/// where Megatron-LM's depends on all samples drawn before. Cuts lie between the characters of the text, which is
/// tokenized again; special tokens in it are recognised.
class FillInMiddle {
 public:
  /// `key`: stream_key() of the run's seed and a name for the dataset. Throws ConfigError for a rate outside [0, 1] or
  /// a marking token that the tokenizer does not have.
  FillInMiddle(const FillInMiddleOptions& options, const text::Tokenizer& tokenizer, std::uint64_t key);

  /// Rewrites the tokens of sample `i`: a sample that becomes longer loses its end, a shorter one is padded.
  void operator()(std::int64_t i, std::span<std::int64_t> tokens) const;

 private:
  class Random;
  void add_document(std::span<const std::int32_t> document, Random& random, std::vector<std::int32_t>& out) const;
  void add_permuted(std::span<const std::int32_t> text, double rate, Random& random,
                    std::vector<std::int32_t>& out) const;

  FillInMiddleOptions options_;
  text::Tokenizer tokenizer_;
  std::uint64_t key_;
};

}  // namespace megatron::data
