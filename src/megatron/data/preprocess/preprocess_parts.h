#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "megatron/data/files/indexed_dataset.h"
#include "megatron/data/files/text_reader.h"

namespace megatron::data {

/// What is written of a preprocessing, in a folder beside its outputs until all of it is whole:
///
///     PREFIX.parts/journal              one JSON object per line: what is made of what, then a note now and then
///     PREFIX.parts/0.bin .lengths .ends of the first pair; 1.bin … of the second
///
/// A note says to which place of the inputs all is written, and size and checksum of what each file got since the note
/// before. Whoever opens the folder again checks the files against the notes and resumes from the last note that holds,
/// so that neither a killed program nor a machine that lost power costs more than what came after it. One process at a
/// time has the folder.
class PreprocessParts {
 public:
  struct Options {
    std::string folder;                 ///< PREFIX.parts
    std::vector<std::string> prefixes;  ///< of the pairs
    DType dtype = DType::U16;
    bool keep = true;      ///< whether a run that fails can resume later: not with inputs that are read but once
    bool restart = false;  ///< throw away what another run left
  };
  /// All that is written before a note.
  struct State {
    TextPosition at = {};
    std::int64_t text_bytes = 0;
    std::int64_t bad_lines = 0;
    std::int64_t blank_lines = 0;      ///< skipped
    std::int64_t empty_documents = 0;  ///< without a token, of all pairs
    std::int64_t not_utf8 = 0;         ///< documents with other bytes
    std::int64_t replaced_bytes = 0;   ///< of them, those that the tokenizer could not read
  };

  /// `identity`: an object that says all that the outputs depend on. Throws ConfigError where another process has the
  /// folder, or a run with another identity left notes there and `restart` is not set.
  PreprocessParts(Options options, const nlohmann::ordered_json& identity);
  /// Leaves what notes tell of, and nothing else.
  ~PreprocessParts();
  PreprocessParts(const PreprocessParts&) = delete;
  PreprocessParts& operator=(const PreprocessParts&) = delete;

  /// Where to resume: the last note that holds, or the beginning.
  const State& state() const { return state_; }
  /// All is written; what is left is publish().
  bool is_complete() const { return is_complete_; }

  /// Appends documents to a pair: tokens as they stand in a .bin file, the length of each sequence, and the number of
  /// sequences of each document.
  void add(std::size_t pair, std::span<const std::byte> tokens, std::span<const std::int32_t> lengths,
           std::span<const std::int32_t> document_sequences);
  /// Makes `state` the place from which to resume.
  void note(const State& state);
  /// Throws away everything, notes too.
  void discard();

  std::int64_t documents(std::size_t pair) const;
  std::int64_t sequences(std::size_t pair) const;
  std::int64_t tokens(std::size_t pair) const;

  /// Gives the pairs their names, each whole. A pair that is there already is replaced: first its old .idx goes, so
  /// that an old index never meets new tokens. Cut short, it is done again by the next run.
  void publish();

 private:
  class File;
  class Journal;
  enum Kind : std::uint8_t { Bin, Lengths, Ends };
  static constexpr std::size_t kKinds = 3;

  void resume(const nlohmann::ordered_json& identity);
  bool files_hold(const nlohmann::ordered_json& note) const;
  void read_note(const nlohmann::ordered_json& note);
  void open_files();
  void name_pairs();
  void remove_folder();
  std::string path(std::size_t pair, Kind kind) const;

  Options options_;
  State state_;
  bool has_notes_ = false, is_complete_ = false, is_published_ = false;
  std::unique_ptr<Journal> journal_;          // none once the folder is gone
  std::vector<std::unique_ptr<File>> files_;  // kKinds a pair; none once complete
  std::vector<std::int64_t> sizes_;           // of the files, in bytes
  std::vector<std::int64_t> ends_;            // scratch of add()
};

}  // namespace megatron::data
