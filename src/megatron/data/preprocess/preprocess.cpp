#include "megatron/data/preprocess/preprocess.h"

#include <sys/stat.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <thread>

#include "megatron/base/error.h"
#include "megatron/base/files/outputs.h"
#include "megatron/base/text/printable.h"
#include "megatron/data/files/indexed_dataset.h"
#include "megatron/data/preprocess/preprocess_parts.h"
#include "megatron/data/preprocess/sentences.h"

namespace megatron::data {
namespace {

/// Bad lines of a block: all are counted, the first ones explained.
struct BadLines {
  static constexpr std::size_t kExplained = 20;
  std::int64_t count = 0;
  std::vector<std::string> reasons;

  void add(const char* reason) {
    ++count;
    if (reasons.size() < kExplained) reasons.emplace_back(reason);
  }
};

/// A block on its way from text to tokens.
struct Job {
  struct Tokens {                                  // of a key
    std::vector<std::byte> bytes;                  // as they stand in the .bin file
    std::vector<std::int32_t> sequence_lengths;    // in tokens
    std::vector<std::int32_t> document_sequences;  // number of sequences of each document
  };
  TextBlock block;
  std::vector<Tokens> keys;
  std::int64_t text_bytes = 0, blank_lines = 0, not_utf8 = 0, replaced_bytes = 0;
  BadLines bad;
  std::exception_ptr error;
  bool done = false;
};

/// Jobs in the order of the input. put() waits while too much text is under way, so that a slow side holds back the
/// fast one. After stop() every waiting call returns empty-handed.
class JobQueue {
 public:
  explicit JobQueue(std::size_t max_bytes) : max_bytes_(max_bytes) {}

  /// False after stop(). A job that is larger than the limit travels alone.
  bool put(std::shared_ptr<Job> job) {
    std::unique_lock lock(mutex_);
    const std::size_t bytes = job->block.bytes.size();
    changed_.wait(lock, [&] { return stopped_ || in_order_.empty() || bytes_ + bytes <= max_bytes_; });
    if (stopped_) return false;
    bytes_ += bytes;
    peak_bytes_ = std::max(peak_bytes_, bytes_);
    if (!job->done) waiting_.push_back(job);
    in_order_.push_back(std::move(job));
    changed_.notify_all();
    return true;
  }
  std::size_t peak_bytes() {
    const std::lock_guard lock(mutex_);
    return peak_bytes_;
  }
  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }
  void stop() {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    changed_.notify_all();
  }

  /// The next job to encode; null when there will be none.
  std::shared_ptr<Job> take() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stopped_ || closed_ || !waiting_.empty(); });
    if (stopped_ || waiting_.empty()) return nullptr;
    auto job = std::move(waiting_.front());
    waiting_.pop_front();
    return job;
  }
  void finish(Job& job) {
    const std::lock_guard lock(mutex_);
    job.done = true;
    changed_.notify_all();
  }

  /// The next finished job in the order of the input; null after the last.
  std::shared_ptr<Job> next_done() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return in_order_.empty() ? closed_ : in_order_.front()->done; });
    return in_order_.empty() ? nullptr : in_order_.front();
  }
  /// The job that next_done() gave is written.
  void release() {
    const std::lock_guard lock(mutex_);
    bytes_ -= in_order_.front()->block.bytes.size();
    in_order_.pop_front();
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Job>> waiting_, in_order_;
  std::size_t bytes_ = 0, peak_bytes_ = 0, max_bytes_;
  bool closed_ = false, stopped_ = false;
};

void read_all(BlockReader& reader, JobQueue& queue) {
  bool more = true, failed = false;
  std::int64_t blank_before = 0;
  while (more && !failed) {
    auto job = std::make_shared<Job>();
    try {
      more = reader.next(job->block);
      if (!more) {  // blank lines after the last record have no block
        job->block.input_position = reader.position();
        job->done = true;
      }
      const std::int64_t blank = reader.blank_records();
      job->blank_lines = blank - std::exchange(blank_before, blank);
    } catch (...) {  // takes its place in the order, after all that came before it in the input
      job->block.bytes.clear();
      job->error = std::current_exception();
      job->done = failed = true;
    }
    if (!queue.put(std::move(job))) break;  // from here on it is a worker's
  }
  queue.close();
}

/// Plain text has no keys to take a text of each from.
void check_keys(const PreprocessOptions& options, const std::string& got) {
  if (options.json_keys.size() > 1)
    throw ConfigError(rule_got_fix("several keys can be taken from JSON lines alone (--json-keys).", got,
                                   "--format jsonl, or one key"));
}

/// One worker: its parser, its encoder, and buffers that last from block to block.
class BlockEncoder {
 public:
  BlockEncoder(const PreprocessOptions& options, const TextEncoder& encoder, const SentenceSplitter* splitter)
      : options_(options),
        dtype_(dtype_for_vocabulary(encoder.vocab_size)),
        parser_(options.json_keys,
                {.fix = "correct the line or take it out, or pass over such: --on-error skip; text that is no JSON: "
                        "--format lines",
                 .key_option = "--json-keys"}),
        encode_(encoder.make()),
        splitter_(splitter),
        tokens_(options.json_keys.size()),
        ends_(options.json_keys.size()) {}

  void run(Job& job) {
    if (!job.block.is_json) check_keys(options_, job.block.file + " is text");
    job.keys.resize(tokens_.size());
    for (std::size_t i = 0; i < job.block.records.size(); ++i) {
      try {
        parser_.parse(job.block, i);
        encode_record(job, i);
      } catch (const ConfigError& error) {
        if (options_.on_error == OnError::Stop) throw;
        job.bad.add(error.what());
      }
    }
    for (std::size_t key = 0; key < tokens_.size(); ++key) {
      narrow_tokens(dtype_, tokens_[key], job.keys[key].bytes);
      constexpr std::size_t kKept = 1 << 22;  // one huge document must not hold its memory for the rest of the run
      if (tokens_[key].capacity() > kKept) tokens_[key] = {};
      tokens_[key].clear();
    }
  }

 private:
  /// Where a key's vectors end.
  struct Ends {
    std::size_t tokens, sequences, documents;
  };

  /// Adds a document to each key, or to none: then it throws the tokenizer's ConfigError with the record's place.
  void encode_record(Job& job, std::size_t record) {
    const std::int64_t text_bytes = job.text_bytes, replaced_bytes = job.replaced_bytes;
    for (std::size_t key = 0; key < tokens_.size(); ++key)
      ends_[key] = {tokens_[key].size(), job.keys[key].sequence_lengths.size(),
                    job.keys[key].document_sequences.size()};
    try {
      for (std::size_t key = 0; key < tokens_.size(); ++key) encode(job, key);
    } catch (const ConfigError& error) {
      for (std::size_t key = 0; key < tokens_.size(); ++key) {
        tokens_[key].resize(ends_[key].tokens);
        job.keys[key].sequence_lengths.resize(ends_[key].sequences);
        job.keys[key].document_sequences.resize(ends_[key].documents);
      }
      job.text_bytes = text_bytes;
      job.replaced_bytes = replaced_bytes;
      throw ConfigError(place_of(job.block, job.block.records[record]) + error.what());
    }
    job.not_utf8 += parser_.value(0).is_utf8 ? 0 : 1;
  }

  void encode(Job& job, std::size_t key) {
    Job::Tokens& out = job.keys[key];
    std::vector<std::int32_t>& tokens = tokens_[key];
    const std::size_t document_begin = tokens.size();
    std::int32_t sequences = 0;
    for (const std::string_view text : sentences_of(parser_.value(key))) {
      const std::size_t begin = tokens.size();
      job.replaced_bytes += encode_(text, tokens);
      job.text_bytes += static_cast<std::int64_t>(text.size());
      if (tokens.size() == begin) continue;
      out.sequence_lengths.push_back(static_cast<std::int32_t>(tokens.size() - begin));
      ++sequences;
    }
    if (options_.append_eod && tokens.size() > document_begin) {
      tokens.push_back(options_.eod);
      ++out.sequence_lengths.back();
    }
    out.document_sequences.push_back(sequences);
  }

  const std::vector<std::string_view>& sentences_of(const DocumentParser::Value& value) {
    if (splitter_ == nullptr || value.is_array) return value.texts;
    sentences_.clear();
    for (const std::string_view text : value.texts) splitter_->split(text, sentences_);
    return sentences_;
  }

  const PreprocessOptions& options_;
  DType dtype_;
  DocumentParser parser_;
  TextEncoder::Encode encode_;
  const SentenceSplitter* splitter_;               // null: texts stay whole
  std::vector<std::vector<std::int32_t>> tokens_;  // of each key
  std::vector<Ends> ends_;                         // of each key, before the record at hand
  std::vector<std::string_view> sentences_;
};

void encode_all(JobQueue& queue, const PreprocessOptions& options, const TextEncoder& encoder,
                const SentenceSplitter* splitter) {
  std::optional<BlockEncoder> worker;
  while (const auto job = queue.take()) {
    try {
      if (!worker) worker.emplace(options, encoder, splitter);
      worker->run(*job);
    } catch (...) {
      job->error = std::current_exception();
    }
    queue.finish(*job);
  }
}

/// Threads that are told to stop and waited for, however the scope is left.
class Crew {
 public:
  explicit Crew(JobQueue& queue) : queue_(queue) {}
  ~Crew() {
    queue_.stop();
    for (std::thread& thread : threads_) thread.join();
  }
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;
  template <class Work>
  void add(Work work) {
    threads_.emplace_back(std::move(work));
  }

 private:
  JobQueue& queue_;
  std::vector<std::thread> threads_;
};

/// All that the outputs depend on.
nlohmann::ordered_json identity_of(const PreprocessOptions& options, const TextEncoder& encoder) {
  nlohmann::ordered_json inputs = nlohmann::ordered_json::array();
  for (const std::string& path : options.text.inputs) {
    struct stat info {};
    ::stat(path.c_str(), &info);
    inputs.push_back({{"path", path},
                      {"bytes", info.st_size},
                      {"modified_ns", info.st_mtim.tv_sec * 1000000000 + info.st_mtim.tv_nsec}});
  }
  return {{"version", 2},
          {"tokenizer", encoder.fingerprint},
          {"vocab_size", encoder.vocab_size},
          {"json_keys", options.json_keys},
          {"format", static_cast<int>(options.text.format)},
          {"piece_bytes", options.text.piece_bytes},
          {"max_document_bytes", options.text.max_document_bytes},
          {"eod", options.append_eod ? options.eod : -1},
          {"sentences", options.split_sentences ? options.language : ""},
          {"keep_newlines", options.keep_newlines},
          {"inputs", std::move(inputs)}};
}

void check(const PreprocessOptions& options, const TextEncoder& encoder) {
  if (options.workers < 1)
    throw ConfigError(rule_got_fix("there must be a worker.", concat(options.workers), "--workers 0, one a core"));
  if (options.append_eod && (options.eod < 0 || options.eod >= encoder.vocab_size))
    throw ConfigError(rule_got_fix("the end-of-document token must be in the vocabulary.", concat(options.eod),
                                   "leave --append-eod out, or name a tokenizer that has it"));
  if (options.json_keys.empty())
    throw ConfigError(rule_got_fix("there must be a key (--json-keys).", "none", "--json-keys text (the default)"));
  for (const std::string& key : options.json_keys)  // it stands in the names of the files that it makes
    check_file_name_part("a key (--json-keys)", key,
                         "rename the key in the input, for example with jq, and name it so");
  for (auto key = options.json_keys.begin(); key != options.json_keys.end(); ++key)
    if (std::find(options.json_keys.begin(), key, *key) != key)
      throw ConfigError(rule_got_fix("each key makes a pair of its own (--json-keys).", *key + " twice",
                                     concat("name ", *key, " once")));
  if (options.text.format != TextFormat::Auto && options.text.format != TextFormat::Jsonl)
    check_keys(options, "a format of plain text");
}

PreprocessParts::Options parts_options(const PreprocessOptions& options, const TextEncoder& encoder, bool keep) {
  PreprocessParts::Options parts{.folder = options.output_prefix + ".parts",
                                 .prefixes = {},
                                 .dtype = dtype_for_vocabulary(encoder.vocab_size),
                                 .keep = keep,
                                 .restart = options.restart};
  const char* level = options.split_sentences ? "_sentence" : "_document";
  for (const std::string& key : options.json_keys) parts.prefixes.push_back(options.output_prefix + "_" + key + level);
  return parts;
}

/// Reads, encodes and appends to `parts` all from its state on; returns the state at the end.
PreprocessParts::State write_parts(const PreprocessOptions& options, const TextEncoder& encoder,
                                   const PreprocessProgress& progress, BlockReader& reader, PreprocessParts& parts,
                                   PreprocessResult& result) {
  PreprocessParts::State state = parts.state();
  std::int64_t noted = state.text_bytes;
  std::optional<SentenceSplitter> splitter;
  if (options.split_sentences) splitter.emplace(options.language, options.keep_newlines);
  // Four blocks per worker keep all busy; the floor lets the longest document pass with others.
  JobQueue queue(
      std::max<std::size_t>(static_cast<std::size_t>(options.workers) * 4 * options.text.block_bytes, 16 << 20));
  Crew crew(queue);
  crew.add([&] { read_all(reader, queue); });
  for (int i = 0; i < options.workers; ++i)
    crew.add([&] { encode_all(queue, options, encoder, splitter ? &*splitter : nullptr); });
  while (const auto job = queue.next_done()) {
    if (job->error) std::rethrow_exception(job->error);
    for (std::size_t key = 0; key < job->keys.size(); ++key) {
      const std::vector<std::int32_t>& sequences = job->keys[key].document_sequences;
      parts.add(key, job->keys[key].bytes, job->keys[key].sequence_lengths, sequences);
      state.empty_documents += std::count(sequences.begin(), sequences.end(), 0);
    }
    state.text_bytes += job->text_bytes;
    state.bad_lines += job->bad.count;
    state.blank_lines += job->blank_lines;
    state.not_utf8 += job->not_utf8;
    state.replaced_bytes += job->replaced_bytes;
    if (options.on_bad_line)
      for (const std::string& reason : job->bad.reasons) options.on_bad_line(reason);
    if (job->block.end) {
      state.at = *job->block.end;
      if (state.text_bytes - noted >= options.note_bytes) {
        parts.note(state);
        noted = state.text_bytes;
      }
    }
    if (progress) progress(job->block.input_position, reader.total_bytes().value_or(0), parts.documents(0));
    queue.release();
  }
  result.peak_bytes = static_cast<std::int64_t>(queue.peak_bytes());
  return state;
}

}  // namespace

TextEncoder encoder_of(const text::Tokenizer& tokenizer, Around around, text::Specials specials) {
  const auto make = [&tokenizer, around, specials]() -> TextEncoder::Encode {
    return [&tokenizer, around, specials, worker = std::make_shared<text::Encoder>(tokenizer.encoder()),
            text_ids = std::vector<std::int32_t>()](std::string_view text, std::vector<std::int32_t>& ids) mutable {
      const std::size_t before = worker->replaced();
      if (around == Around::Nothing) {
        worker->encode_append(text, ids, specials);
      } else {
        text_ids.clear();
        worker->encode_append(text, text_ids, specials);
        const std::vector<std::int32_t> framed = tokenizer.frame(text_ids).ids;
        ids.insert(ids.end(), framed.begin(), framed.end());
      }
      return static_cast<std::int64_t>(worker->replaced() - before);
    };
  };
  TextEncoder encoder{.make = make, .vocab_size = tokenizer.vocab_size(), .fingerprint = tokenizer.fingerprint()};
  if (specials == text::Specials::Recognised) encoder.fingerprint += " specials";
  if (around == Around::Template) {
    encoder.fingerprint += " around";  // a tokenizer's own does not depend on its template
    for (const std::int32_t id : tokenizer.frame({}).ids) encoder.fingerprint += concat(' ', id);
  }
  return encoder;
}

OnError on_error_of(std::string_view name) {
  if (name == "stop") return OnError::Stop;
  if (name == "skip") return OnError::Skip;
  throw ConfigError(rule_got_fix("--on-error is stop or skip.", std::string(name), "--on-error stop (the default)"));
}

PreprocessResult preprocess(const PreprocessOptions& options, const TextEncoder& encoder,
                            const PreprocessProgress& progress) {
  check(options, encoder);
  BlockReader reader(options.text);
  // Inputs of a known size are files, which can be read again.
  const PreprocessParts::Options where = parts_options(options, encoder, reader.total_bytes().has_value());
  std::vector<std::string> outputs;
  for (const std::string& prefix : where.prefixes) outputs.insert(outputs.end(), {prefix + ".bin", prefix + ".idx"});
  check_outputs(outputs, options.text.inputs);
  PreprocessParts parts(where, identity_of(options, encoder));
  PreprocessResult result;
  result.kept_bytes = parts.state().text_bytes;
  if (options.on_error == OnError::Stop && parts.state().bad_lines > 0)
    throw ConfigError(rule_got_fix("a run that has skipped bad lines resumes with --on-error skip.",
                                   concat(parts.state().bad_lines, " bad lines in ", where.folder),
                                   "--on-error skip, or --restart to throw away what was done"));
  PreprocessParts::State state = parts.state();
  if (!parts.is_complete()) {
    reader.start_at(state.at);
    if (progress) progress(reader.position(), reader.total_bytes().value_or(0), parts.documents(0));
    state = write_parts(options, encoder, progress, reader, parts, result);
    std::int64_t tokens = 0;
    for (std::size_t key = 0; key < options.json_keys.size(); ++key) tokens += parts.tokens(key);
    if (tokens == 0) {
      parts.discard();
      throw ConfigError(rule_got_fix("the input must hold text.",
                                     concat(parts.documents(0), " documents without a token"),
                                     "--input a file with text; of JSON lines, the key that holds it: --json-keys"));
    }
    parts.note(state);
  }
  for (std::size_t key = 0; key < options.json_keys.size(); ++key)
    result.pairs.push_back(
        {options.json_keys[key], where.prefixes[key], parts.documents(key), parts.sequences(key), parts.tokens(key)});
  result.text_bytes = state.text_bytes;
  result.bad_lines = state.bad_lines;
  result.blank_lines = state.blank_lines;
  result.empty_documents = state.empty_documents;
  result.not_utf8 = state.not_utf8;
  result.replaced_bytes = state.replaced_bytes;
  parts.publish();
  return result;
}

}  // namespace megatron::data
