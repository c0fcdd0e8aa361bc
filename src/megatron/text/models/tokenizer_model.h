#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "megatron/text/characters/token_index.h"
#include "megatron/text/normalize/normalize.h"
#include "megatron/text/split/added_tokens.h"
#include "megatron/text/split/split.h"
#include "megatron/text/vocabulary.h"

namespace megatron::text {

/// Encodes, on one thread, text that is normalized and holds no added token.
class TextEncoder {
 public:
  virtual ~TextEncoder() = default;

  /// Appends the ids of `text` to `out`, cut into pieces by the scanner of the vocabulary's form. Only where it has no
  /// `pipeline`.
  virtual void encode(std::string_view text, std::vector<std::int32_t>& out) { encode_piece(text, out, nullptr); }

  /// Appends the ids of one piece to `ids`; and to `ends`, where given, for each of them where it ends in the piece.
  virtual void encode_piece(std::string_view piece, std::vector<std::int32_t>& ids, std::vector<std::size_t>* ends) = 0;
};

/// FNV-1a, 64 bits: short, and the same on every machine.
class Fnv {
 public:
  void add(std::string_view bytes) {
    for (const char c : bytes) state_ = (state_ ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  }
  void add(std::uint64_t value) {
    for (int i = 0; i < 8; ++i, value >>= 8) state_ = (state_ ^ (value & 0xFF)) * 0x100000001B3u;
  }
  std::uint64_t value() const { return state_; }

 private:
  std::uint64_t state_ = 0xCBF29CE484222325u;
};

/// The tables that one kind of tokenizer encodes and decodes with, built once from a vocabulary and constant from then
/// on. A new kind derives from it and is named in make_model().
class TokenizerModel {
 public:
  virtual ~TokenizerModel() = default;
  // The string views of the tables point into the vocabulary.
  TokenizerModel(const TokenizerModel&) = delete;
  TokenizerModel& operator=(const TokenizerModel&) = delete;

  const Vocabulary& vocabulary() const { return vocabulary_; }
  /// Ids of all tokens; of two with the same bytes the special one.
  const TokenIndex& token_ids() const { return token_ids_; }
  /// Id of the token of these bytes that the model itself has, or -1: no special token that is outside of it.
  std::int32_t own_id(std::string_view bytes) const {
    const std::int32_t found = token_ids_.find(bytes);
    if (found < 0 || !outside_[static_cast<std::size_t>(found)]) return found;
    const auto twin = twins_.find(bytes);
    return twin == twins_.end() ? -1 : twin->second;
  }
  /// It is a special token that the model itself does not have.
  bool is_outside(std::int32_t id) const { return outside_[static_cast<std::size_t>(id)]; }
  const AddedTokens& added() const { return added_; }
  const NormalizeSteps& normalizers() const { return normalizers_; }
  const SplitSteps& pre_tokenizers() const { return pre_tokenizers_; }
  const std::string& fingerprint() const { return fingerprint_; }

  /// An encoder that may use 2^cache_bits entries of 32 bytes. It must not outlive the model.
  virtual std::unique_ptr<TextEncoder> encoder(int cache_bits) const = 0;

  /// The text of `ids`, each in [0, tokens).
  std::string decode(std::span<const std::int32_t> ids) const;

 protected:
  /// Throws ConfigError where `vocabulary` breaks a rule of vocabulary.h that holds for every kind. `kind` begins the
  /// fingerprint.
  TokenizerModel(Vocabulary vocabulary, const char* kind);

  /// The token that merge number `i` makes: its left half, and its right one without `continues` before it. Throws
  /// ConfigError where it joins or makes no token.
  std::int32_t made_by_merge(std::size_t i, std::string_view continues = {}) const;

 private:
  void index_tokens();
  void check_template() const;
  void compute_fingerprint(const char* kind);

  Vocabulary vocabulary_;
  TokenIndex token_ids_;
  std::vector<bool> outside_;  // per id
  std::unordered_map<std::string_view, std::int32_t>
      twins_;  // tokens of the model that have the bytes of others outside
  NormalizeSteps normalizers_;
  SplitSteps pre_tokenizers_;
  AddedTokens added_;
  std::string fingerprint_;
};

/// The tables of `vocabulary`, whatever its kind. Throws ConfigError where it breaks a rule of vocabulary.h.
std::shared_ptr<const TokenizerModel> make_model(Vocabulary vocabulary);

}  // namespace megatron::text
