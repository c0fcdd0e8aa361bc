#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/text/regex/regex.h"
#include "megatron/text/vocabulary.h"

namespace megatron::text {

/// One decoder at work on the tokens of one text. A token may come in several parts; what a stage gives on it may keep
/// back until it has seen enough.
class DecodeStage {
 public:
  virtual ~DecodeStage() = default;
  /// Takes a part of a token; `begins`: the first part of one.
  virtual void take(std::string_view part, bool begins) = 0;
  /// No more tokens come.
  virtual void finish() = 0;
};

/// The way back from ids to text by the decoders of a vocabulary. Shares nothing that changes: one for each text.
class Decoding {
 public:
  /// `vocabulary` must outlive it.
  explicit Decoding(const Vocabulary& vocabulary);

  /// Appends to `out` what is certain after the next id, which must be one of the vocabulary.
  void push(std::int32_t id, std::string& out);
  /// Appends what was kept back.
  void finish(std::string& out);

 private:
  const Vocabulary& vocabulary_;
  std::unique_ptr<std::string> out_;                  // the last stage writes here
  std::vector<std::unique_ptr<DecodeStage>> stages_;  // from the last to the first
};

}  // namespace megatron::text
