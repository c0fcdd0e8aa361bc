#include "megatron/data/preprocess/preprocess_parts.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/base/files/write_error.h"

namespace megatron::data {
namespace {

using Json = nlohmann::ordered_json;

[[noreturn]] void fail(const std::string& path, const char* what) {
  throw std::runtime_error(write_error(path, what, errno));
}

void append_all(int descriptor, std::span<const std::byte> bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) fail(path, "cannot be written");
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

/// A whole number of a note as T; nothing where it is none, does not fit or is missing.
template <class T = std::int64_t>
std::optional<T> number_of(const Json& note, const char* key) {
  const auto found = note.find(key);
  if (found == note.end() || !found->is_number_unsigned() || !std::in_range<T>(found->get<std::uint64_t>())) return {};
  return found->get<T>();
}

using State = PreprocessParts::State;

/// What is counted, as notes call it.
constexpr std::array<std::pair<const char*, std::int64_t State::*>, 6> kCounts = {{
    {"text_bytes", &State::text_bytes},
    {"bad_lines", &State::bad_lines},
    {"blank_lines", &State::blank_lines},
    {"empty_documents", &State::empty_documents},
    {"not_utf8", &State::not_utf8},
    {"replaced_bytes", &State::replaced_bytes},
}};

/// What two identities differ in, in words: "append_eod: false there, true here".
std::string difference_of(const Json& there, const Json& here) {
  for (const auto& [key, value] : here.items()) {
    const std::string other = there.is_object() && there.contains(key) ? there[key].dump() : "none", own = value.dump();
    if (other != own) return own.size() + other.size() > 400 ? key : concat(key, ": ", other, " there, ", own, " here");
  }
  return "its options";
}

}  // namespace

/// A file that only grows, and the checksum of what it got since the last note.
class PreprocessParts::File {
 public:
  File(std::string path, std::int64_t size) : path_(std::move(path)) {
    descriptor_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (descriptor_ < 0) fail(path_, "cannot be opened");
    if (::ftruncate(descriptor_, size) != 0 || ::lseek(descriptor_, 0, SEEK_END) != size) fail(path_, "cannot be cut");
    XXH3_64bits_reset(hash_.get());
  }
  ~File() { ::close(descriptor_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  void write(std::span<const std::byte> bytes) {
    append_all(descriptor_, bytes, path_);
    XXH3_64bits_update(hash_.get(), bytes.data(), bytes.size());
  }
  std::uint64_t take_checksum() {
    const std::uint64_t checksum = XXH3_64bits_digest(hash_.get());
    XXH3_64bits_reset(hash_.get());
    return checksum;
  }
  void sync() const {
    if (::fsync(descriptor_) != 0) fail(path_, "cannot be synced");
  }

 private:
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  std::string path_;
  int descriptor_ = -1;
  std::unique_ptr<XXH3_state_t, Free> hash_{XXH3_createState()};
};

/// The journal, locked while it is open.
class PreprocessParts::Journal {
 public:
  struct Line {
    Json value;
    std::size_t end;  ///< in the file
  };

  explicit Journal(const std::string& path) : path_(path) {
    for (int tries = 1;; ++tries) {
      make_folder(std::filesystem::path(path).parent_path());
      descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
      if (descriptor_ < 0 && errno == ENOENT && tries < kMaxTries) continue;  // another run has just removed the folder
      if (descriptor_ < 0) fail(path_, "cannot be opened");
      if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
        ::close(descriptor_);
        throw ConfigError(rule_got_fix("one run at a time can write to an output.", path_ + " is in use",
                                       "wait for the other run, or choose another --output-prefix"));
      }
      struct stat opened {};
      if (::fstat(descriptor_, &opened) == 0 && opened.st_nlink > 0) return;
      ::close(descriptor_);  // whoever had the lock has finished and removed the file
    }
  }
  ~Journal() { ::close(descriptor_); }
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  /// The lines up to the first that is not whole.
  std::vector<Line> read() const {
    std::vector<Line> lines;
    const MappedFile file(path_);
    const std::string_view text = file.text();
    for (std::size_t at = 0, end = 0; (end = text.find('\n', at)) != std::string_view::npos; at = end + 1) {
      Json line = Json::parse(text.substr(at, end - at), nullptr, false);
      if (!line.is_object()) break;
      lines.push_back({std::move(line), end + 1});
    }
    return lines;
  }
  void cut(std::size_t size) const {
    if (::ftruncate(descriptor_, static_cast<off_t>(size)) != 0) fail(path_, "cannot be cut");
  }
  void add(const Json& line) const {
    const std::string text = line.dump() + "\n";
    append_all(descriptor_, std::as_bytes(std::span(text)), path_);
  }
  void sync() const {
    if (::fsync(descriptor_) != 0) fail(path_, "cannot be synced");
  }

 private:
  static constexpr int kMaxTries = 1000;  // what never is there is no race

  std::string path_;
  int descriptor_ = -1;
};

PreprocessParts::PreprocessParts(Options options, const Json& identity)
    : options_(std::move(options)), sizes_(options_.prefixes.size() * kKinds) {
  for (const std::string& prefix : options_.prefixes) make_folder(std::filesystem::path(prefix).parent_path());
  journal_ = std::make_unique<Journal>(options_.folder + "/journal");
  // Names of files that are no UTF-8 are compared as the journal can hold them.
  resume(Json::parse(identity.dump(-1, ' ', false, Json::error_handler_t::replace)));
  if (!is_complete_) open_files();
}

PreprocessParts::~PreprocessParts() {
  if (!journal_ || has_notes_) return;
  try {
    remove_folder();
  } catch (const std::exception&) {  // what is left is thrown away by the next run
  }
}

void PreprocessParts::resume(const Json& identity) {
  const std::vector<Journal::Line> lines = journal_->read();
  const bool same = !lines.empty() && lines[0].value == identity;
  if (!same && lines.size() > 1 && !options_.restart)
    throw ConfigError(rule_got_fix(
        options_.folder + " holds what another run left, which resumes only with its own inputs and options.",
        difference_of(lines[0].value, identity), "--restart (throws it away), or the inputs and options of that run"));
  std::size_t held = 0;
  if (same && options_.keep && !options_.restart) {
    // Once complete, all was synced, and files may have left the folder.
    is_published_ = lines.back().value.contains("published");
    is_complete_ = is_published_ || lines.back().value.contains("complete");
    while (held + 1 < lines.size() && (is_complete_ || files_hold(lines[held + 1].value)))
      read_note(lines[++held].value);
  }
  has_notes_ = held > 0;
  journal_->cut(has_notes_ ? lines[held].end : 0);
  if (!has_notes_) journal_->add(identity);
}

/// Whether the files have what a note says they got since the note before.
bool PreprocessParts::files_hold(const Json& note) const {
  for (const char* key : {"input", "offset", "line"})
    if (!number_of(note, key)) return false;
  for (const auto& [key, count] : kCounts)
    if (!number_of(note, key)) return false;
  const auto found = note.find("files");
  if (found == note.end() || !found->is_array() || found->size() != sizes_.size()) return false;
  for (std::size_t i = 0; i < sizes_.size(); ++i) {
    const auto size = number_of((*found)[i], "size");
    const auto checksum = number_of<std::uint64_t>((*found)[i], "xxh3");
    const std::string name = path(i / kKinds, static_cast<Kind>(i % kKinds));
    if (!size || !checksum || *size < sizes_[i] || !std::filesystem::exists(name)) return false;
    const MappedFile file(name);
    if (static_cast<std::uint64_t>(*size) > file.size()) return false;
    const auto added =
        file.bytes().subspan(static_cast<std::size_t>(sizes_[i]), static_cast<std::size_t>(*size - sizes_[i]));
    if (XXH3_64bits(added.data(), added.size()) != *checksum) return false;
  }
  return true;
}

void PreprocessParts::read_note(const Json& note) {
  const auto found = note.find("files");
  if (found == note.end() || !found->is_array() || found->size() != sizes_.size()) return;
  for (std::size_t i = 0; i < sizes_.size(); ++i) sizes_[i] = number_of((*found)[i], "size").value_or(0);
  state_.at = {number_of<std::size_t>(note, "input").value_or(0), number_of(note, "offset").value_or(0),
               number_of(note, "line").value_or(1)};
  for (const auto& [key, count] : kCounts) state_.*count = number_of(note, key).value_or(0);
}

void PreprocessParts::open_files() {
  for (std::size_t i = 0; i < sizes_.size(); ++i)
    files_.push_back(std::make_unique<File>(path(i / kKinds, static_cast<Kind>(i % kKinds)), sizes_[i]));
}

void PreprocessParts::add(std::size_t pair, std::span<const std::byte> tokens, std::span<const std::int32_t> lengths,
                          std::span<const std::int32_t> document_sequences) {
  ends_.clear();
  std::int64_t end = sequences(pair);
  for (const std::int32_t count : document_sequences) ends_.push_back(end += count);
  const std::array<std::span<const std::byte>, kKinds> added = {tokens, std::as_bytes(lengths),
                                                                std::as_bytes(std::span<const std::int64_t>(ends_))};
  for (std::size_t kind = 0; kind < kKinds; ++kind) {
    files_[pair * kKinds + kind]->write(added[kind]);
    sizes_[pair * kKinds + kind] += static_cast<std::int64_t>(added[kind].size());
  }
}

void PreprocessParts::note(const State& state) {
  state_ = state;
  if (!options_.keep) return;
  Json files = Json::array();
  for (std::size_t i = 0; i < files_.size(); ++i)
    files.push_back({{"size", sizes_[i]}, {"xxh3", files_[i]->take_checksum()}});
  Json line{{"input", state.at.input}, {"offset", state.at.offset}, {"line", state.at.line}};
  for (const auto& [key, count] : kCounts) line[key] = state.*count;
  line["files"] = std::move(files);
  journal_->add(line);
  has_notes_ = true;
}

void PreprocessParts::discard() { has_notes_ = false; }

void PreprocessParts::publish() {
  if (!is_complete_) {
    for (const auto& file : files_) file->sync();
    files_.clear();
    if (options_.keep) journal_->add({{"complete", true}});
    journal_->sync();
    fsync_folder(options_.folder);
    is_complete_ = true;
  }
  if (!is_published_) {
    name_pairs();
    if (options_.keep) journal_->add({{"published", true}});
    journal_->sync();
    is_published_ = true;
  }
  remove_folder();
}

/// All indices are written before the first pair gets its name.
void PreprocessParts::name_pairs() {
  std::vector<std::unique_ptr<AtomicFile>> indices;
  for (std::size_t pair = 0; pair < options_.prefixes.size(); ++pair) {
    const MappedFile lengths(path(pair, Lengths)), ends(path(pair, Ends));
    indices.push_back(std::make_unique<AtomicFile>(options_.prefixes[pair] + ".idx"));
    write_index(*indices.back(), options_.dtype, lengths.bytes(), ends.bytes());
  }
  for (std::size_t pair = 0; pair < options_.prefixes.size(); ++pair) {
    const std::string& prefix = options_.prefixes[pair];
    if (std::filesystem::exists(path(pair, Bin))) {  // else a run that was cut short has moved it
      std::filesystem::remove(prefix + ".idx");
      std::filesystem::rename(path(pair, Bin), prefix + ".bin");
    }
    indices[pair]->commit();
  }
}

/// The journal goes last: what is without one is nobody's, and is written over.
void PreprocessParts::remove_folder() {
  files_.clear();
  for (std::size_t i = 0; i < sizes_.size(); ++i)
    std::filesystem::remove(path(i / kKinds, static_cast<Kind>(i % kKinds)));
  std::filesystem::remove(options_.folder + "/journal");
  std::error_code not_empty;
  std::filesystem::remove(options_.folder, not_empty);
  journal_.reset();
}

std::string PreprocessParts::path(std::size_t pair, Kind kind) const {
  constexpr std::array<const char*, kKinds> kEndings = {".bin", ".lengths", ".ends"};
  return concat(options_.folder, "/", pair, kEndings[kind]);
}

std::int64_t PreprocessParts::documents(std::size_t pair) const {
  return sizes_[pair * kKinds + Ends] / static_cast<std::int64_t>(sizeof(std::int64_t));
}
std::int64_t PreprocessParts::sequences(std::size_t pair) const {
  return sizes_[pair * kKinds + Lengths] / static_cast<std::int64_t>(sizeof(std::int32_t));
}
std::int64_t PreprocessParts::tokens(std::size_t pair) const {
  return sizes_[pair * kKinds + Bin] / static_cast<std::int64_t>(item_size(options_.dtype));
}

}  // namespace megatron::data
