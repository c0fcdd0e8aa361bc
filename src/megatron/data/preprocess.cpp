#include "megatron/data/preprocess.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>

#include "megatron/base/error.h"
#include "megatron/base/file.h"
#include "megatron/data/indexed_dataset.h"

namespace megatron::data {
namespace {

/// A block on its way from text to tokens.
struct Job {
  TextBlock block;
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> sequence_lengths;
  std::vector<std::int32_t> document_sequences;  // number of sequences of each document
  std::int64_t text_bytes = 0;
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
  bool more = true;
  while (more) {
    auto job = std::make_shared<Job>();
    try {
      more = reader.next(job->block);
    } catch (...) {  // takes its place in the order, after all that came before it in the input
      job->block.bytes.clear();
      job->error = std::current_exception();
      job->done = true;
    }
    if (more && !queue.put(job)) break;
    if (job->error) break;
  }
  queue.close();
}

void encode_block(Job& job, const PreprocessOptions& options, DocumentParser& parser,
                  const TextEncoder::Encode& encode) {
  for (std::size_t i = 0; i < job.block.records.size(); ++i) {
    const std::size_t document_begin = job.tokens.size();
    std::int32_t sequences = 0;
    for (const std::string_view text : parser.parse(job.block, i)) {
      const std::size_t begin = job.tokens.size();
      encode(text, job.tokens);
      job.text_bytes += static_cast<std::int64_t>(text.size());
      if (job.tokens.size() == begin) continue;
      job.sequence_lengths.push_back(static_cast<std::int32_t>(job.tokens.size() - begin));
      ++sequences;
    }
    if (options.append_eod && job.tokens.size() > document_begin) {
      job.tokens.push_back(options.eod);
      ++job.sequence_lengths.back();
    }
    job.document_sequences.push_back(sequences);
  }
}

void encode_all(JobQueue& queue, const PreprocessOptions& options, const TextEncoder& encoder) {
  DocumentParser parser(options.text.json_key);
  std::optional<TextEncoder::Encode> encode;
  while (const auto job = queue.take()) {
    try {
      if (!encode) encode = encoder.make();
      encode_block(*job, options, parser, *encode);
    } catch (...) {
      job->error = std::current_exception();
    }
    queue.finish(*job);
  }
}

void write_block(const Job& job, IndexedDatasetWriter& writer) {
  std::span<const std::int32_t> tokens(job.tokens), lengths(job.sequence_lengths);
  for (const std::int32_t sequences : job.document_sequences) {
    const auto of_document = lengths.first(static_cast<std::size_t>(sequences));
    std::size_t size = 0;
    for (const std::int32_t length : of_document) size += static_cast<std::size_t>(length);
    writer.add_document(tokens.first(size), of_document);
    tokens = tokens.subspan(size);
    lengths = lengths.subspan(of_document.size());
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

}  // namespace

TextEncoder encoder_of(const text::Tokenizer& tokenizer) {
  const auto make = [&tokenizer]() -> TextEncoder::Encode {
    return [worker = std::make_shared<text::Encoder>(tokenizer.encoder())](
               std::string_view text, std::vector<std::int32_t>& ids) { worker->encode_append(text, ids); };
  };
  return {.make = make, .vocab_size = tokenizer.vocab_size()};
}

PreprocessResult preprocess(const PreprocessOptions& options, const TextEncoder& encoder,
                            const PreprocessProgress& progress) {
  if (options.workers < 1) throw ConfigError(rule_got_fix("there must be a worker.", concat(options.workers)));
  if (options.append_eod && (options.eod < 0 || options.eod >= encoder.vocab_size))
    throw ConfigError(rule_got_fix("the end-of-document token must be in the vocabulary.", concat(options.eod)));
  BlockReader reader(options.text);
  PreprocessResult result;
  result.prefix = concat(options.output_prefix, "_", options.text.json_key, "_document");
  make_folder(std::filesystem::path(result.prefix).parent_path());
  IndexedDatasetWriter writer(result.prefix, dtype_for_vocabulary(encoder.vocab_size));

  // Four blocks a worker keep all busy; the floor lets the longest document pass beside others.
  JobQueue queue(
      std::max<std::size_t>(static_cast<std::size_t>(options.workers) * 4 * options.text.block_bytes, 16 << 20));
  Crew crew(queue);
  crew.add([&] { read_all(reader, queue); });
  for (int i = 0; i < options.workers; ++i) crew.add([&] { encode_all(queue, options, encoder); });
  while (const auto job = queue.next_done()) {
    if (job->error) std::rethrow_exception(job->error);
    write_block(*job, writer);
    result.tokens += static_cast<std::int64_t>(job->tokens.size());
    result.text_bytes += job->text_bytes;
    if (progress) progress(job->block.input_position, reader.total_bytes().value_or(0), writer.documents());
    queue.release();
  }
  if (result.tokens == 0)
    throw ConfigError(
        rule_got_fix("the input must hold text.", concat(writer.documents(), " documents without a token")));
  result.documents = writer.documents();
  result.sequences = writer.sequences();
  result.peak_bytes = static_cast<std::int64_t>(queue.peak_bytes());
  writer.publish();
  return result;
}

}  // namespace megatron::data
