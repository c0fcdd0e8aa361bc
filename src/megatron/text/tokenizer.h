#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/text/normalize/aligned_text.h"

namespace megatron::text {

struct Vocabulary;     // vocabulary.h: a tokenizer as data
class TokenizerModel;  // tokenizer_model.h: the tables that encoding reads
class Decoding;        // decode.h: the way back
class Encoder;

/// What to do with special tokens ("<|endoftext|>") that are written out in the text to encode.
enum class Specials {
  AsText,      ///< Ordinary text, as Megatron-LM's GPT-2 tokenizer and tiktoken's encode_ordinary treat them.
  Recognised,  ///< Become their ids, as Hugging Face tokenizers does (added_tokens.h).
};

/// One text or a pair as a tokenizer's template frames it.
struct Framed {
  std::vector<std::int32_t> ids, types;
};

/// The ids of a text and where in it each comes from, as Hugging Face tokenizers says it: [begin, end) in bytes and in
/// characters (a byte that is no UTF-8 counts as one).
struct Encoding {
  std::vector<std::int32_t> ids;
  std::vector<ByteSpan> bytes, characters;
};

/// Text to ids and back: byte-pair encoding over bytes (Radford et al. 2019, section 2.2), which loses nothing, or over
/// characters, WordPiece, Unigram, SentencePiece's models, whole words; with the steps around them that the file names.
/// Immutable; copies share the tables; every member may be called from many threads at once.
///
/// Bytes that are not valid UTF-8 are allowed. To a byte-level model each counts as a character that is neither letter,
/// number nor space, and decoding gives it back; the others read U+FFFD in its place (Encoder::replaced() counts them).
class Tokenizer {
 public:
  /// Reads a tokenizer from a folder or from one of its files, whose kind it finds out (tokenizer_files.h):
  /// tokenizer.json (Hugging Face), tekken.json (Mistral), tokenizer.model or another SentencePiece `.model`, a rank
  /// file of tiktoken, encoder.json with vocab.bpe (GPT-2), vocab.json with merges.txt, vocab.txt (BERT), a GGUF file
  /// (llama.cpp). `type`: nothing, or one of Megatron's names (tokenizer_types.h), which the file must be. `extra_ids`:
  /// sentinels to add to WordPiece (sentinels.h). Throws ConfigError, naming the file and what is wrong with it, for
  /// anything it cannot reproduce exactly.
  static Tokenizer load(const std::filesystem::path& path, std::string_view type = {}, std::int64_t extra_ids = 0);

  /// Throws ConfigError where `vocabulary` breaks the rules listed in vocabulary.h.
  explicit Tokenizer(Vocabulary vocabulary);

  /// Writes `folder`/tokenizer.json (folder made if missing), which Hugging Face tokenizers loads and encodes equally
  /// with; where that format cannot hold the tokenizer, the file it was read from. It appears whole or not at all.
  /// Beside it a tokenizer_config.json with the end token where the files named one and none is there yet.
  /// Throws std::runtime_error where it cannot be written.
  void save(const std::filesystem::path& folder) const;

  /// One thread's encoder for long texts or many; see Encoder.
  Encoder encoder() const;

  /// Encodes a short text. For more than a few kilobytes in all, keep an encoder().
  std::vector<std::int32_t> encode(std::string_view text, Specials specials = Specials::AsText) const;

  /// The ids of each text, by up to `threads` threads (encode_batch.cpp). The same as one by one, also what is thrown:
  /// what the first text that cannot be encoded throws.
  std::vector<std::vector<std::int32_t>> encode_batch(std::span<const std::string_view> texts, int threads,
                                                      Specials specials = Specials::AsText) const;

  /// `first`, or `first` and `second`, between the tokens that the tokenizer's template sets: [CLS] first [SEP] second
  /// [SEP] with types 0 and 1. A tokenizer without template sets none.
  Framed frame(std::span<const std::int32_t> first) const;
  Framed frame(std::span<const std::int32_t> first, std::span<const std::int32_t> second) const;

  /// The text of `ids`, special tokens included. Throws ConfigError at an id outside [0, vocab_size()).
  std::string decode(std::span<const std::int32_t> ids) const;

  /// Number of tokens, special ones included; ids are 0 … vocab_size() - 1.
  std::int32_t vocab_size() const;

  /// Bytes of one token; the view lives as long as any copy of this tokenizer. Throws as decode() does.
  std::string_view id_to_bytes(std::int32_t id) const;

  /// Id of the token, special or not, that is exactly these bytes.
  std::optional<std::int32_t> token_to_id(std::string_view bytes) const;

  /// Id of the token that ends documents and generation: the one that the files name as end (eos_token of
  /// tokenizer_config.json, without one sep_token, as Megatron-Core's HuggingFaceTokenizer has it), else
  /// "<|endoftext|>", "<|end_of_text|>", "</s>", "[EOS]" or "[SEP]". Throws ConfigError where the vocabulary has none.
  std::int32_t eod_id() const;
  /// eod_id(); nothing where the vocabulary has none.
  std::optional<std::int32_t> find_eod_id() const;

  /// "<kind>-<vocab size>-<16 hex digits>", equal for tokenizers that encode and decode equally; for cache keys.
  const std::string& fingerprint() const;

  const Vocabulary& vocabulary() const;

 private:
  std::shared_ptr<const TokenizerModel> model_;
};

/// Encodes on one thread: keeps buffers and a cache of recent pieces of text, and shares the tokenizer's tables.
/// Not to be used by two threads at once; each thread takes its own from Tokenizer::encoder().
class Encoder {
 public:
  /// BPE's cache has 2^cache_bits pieces of 32 bytes: the default fills a core's L2.
  explicit Encoder(std::shared_ptr<const TokenizerModel> model, int cache_bits = 16);
  Encoder(Encoder&&) noexcept;
  Encoder& operator=(Encoder&&) noexcept;
  ~Encoder();

  /// Appends the ids of `text` to `out`; `out` keeps its capacity, so a reused vector costs no allocation.
  void encode_append(std::string_view text, std::vector<std::int32_t>& out, Specials specials = Specials::AsText);

  /// The ids of encode_append(), and where they come from. Slower: made for texts of a question and its answer, not for
  /// corpora.
  Encoding encode_with_offsets(std::string_view text, Specials specials = Specials::AsText);

  /// How many bytes that were no UTF-8 have been replaced by U+FFFD so far, in all texts.
  std::size_t replaced() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Turns a stream of ids into text that never ends inside a UTF-8 character.
///
///   StreamDecoder stream(tokenizer);
///   for (auto id : generated) std::fputs(stream.push(id).c_str(), stdout);
///   std::fputs(stream.finish().c_str(), stdout);
class StreamDecoder {
 public:
  explicit StreamDecoder(Tokenizer tokenizer);
  StreamDecoder(StreamDecoder&&) noexcept;
  StreamDecoder& operator=(StreamDecoder&&) noexcept;
  ~StreamDecoder();

  /// The bytes that are certain and complete now; possibly none. All that push() and finish() give is what decode()
  /// gives of all ids. Bytes that cannot begin a character are passed on as they are.
  std::string push(std::int32_t id);

  /// What was kept back. The next push() begins another text.
  std::string finish();

 private:
  Tokenizer tokenizer_;
  std::unique_ptr<Decoding> decoding_;
  std::string pending_;
};

}  // namespace megatron::text
