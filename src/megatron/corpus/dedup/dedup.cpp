#include "megatron/corpus/dedup/dedup.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/base/files/outputs.h"
#include "megatron/corpus/dedup/band_index.h"
#include "megatron/corpus/dedup/clusters.h"
#include "megatron/corpus/dedup/shingle_sets.h"
#include "megatron/corpus/output_file.h"
#include "megatron/corpus/records.h"

namespace megatron::corpus {
namespace {

/// A thread's way from records to shingles.
class DocumentShingler {
 public:
  explicit DocumentShingler(const DedupOptions& options) : parser_(options.text), shingler_(options.shingles) {}

  const std::vector<std::uint64_t>& shingles(const data::TextBlock& block, std::size_t record) {
    const std::string_view text = joined(parser_.parse(block, record), buffer_);
    text_bytes_ = text.size();
    return shingler_.shingles(text);
  }
  std::size_t text_bytes() const { return text_bytes_; }

 private:
  data::DocumentParser parser_;
  Shingler shingler_;
  std::string buffer_;
  std::size_t text_bytes_ = 0;
};

class Deduplication {
 public:
  Deduplication(const DedupOptions& options, const OnDedupProgress& progress)
      : options_(options),
        progress_(progress),
        hasher_(options.bands != 0 || options.rows != 0 ? Bands{options.bands, options.rows}
                                                        : choose_bands(options.hashes, options.threshold),
                options.seed),
        keys_(static_cast<std::size_t>(hasher_.bands().bands) + 1),
        index_(keys_, options.temporary_folder, options.memory_bytes / 2, options.workers),
        sets_(options.temporary_folder, options.memory_bytes / 2) {
    result_.bands = hasher_.bands();
  }

  DedupResult run() {
    if (!options_.output.empty()) output_ = std::make_unique<OutputFile>(options_.output);
    if (!options_.report.empty()) report_ = std::make_unique<OutputFile>(options_.report);
    index_documents();
    index_.finish(options_.workers);
    number_candidates();
    keep_shingles();
    const Clusters clusters = cluster(index_, candidate_of_, sets_, options_.threshold, options_.workers);
    choose(clusters);
    if (output_ || report_) write_documents();
    if (output_) output_->commit();
    if (report_) report_->commit();
    result_.spilled = index_.is_spilled() || sets_.is_spilled();
    return result_;
  }

 private:
  template <class Result, class MakeWork, class Consume>
  void pass(const char* name, MakeWork&& make_work, Consume&& consume) {
    data::BlockReader reader(options_.text);
    const std::int64_t total = reader.total_bytes().value_or(0);
    const std::int64_t documents =
        for_each_block<Result>(reader, options_.workers, make_work, [&](const CorpusBlock& block, Result& result) {
          consume(block, result);
          if (progress_) progress_(name, block.text.input_position, total);
        });
    if (result_.documents != 0 && documents != result_.documents)
      throw std::runtime_error(concat("the inputs changed while they were read: ", result_.documents,
                                      " documents at first, then ", documents));
    result_.documents = documents;
  }

  /// Pass 1.
  void index_documents() {
    struct Keys {
      std::vector<std::uint32_t> keys;  // of the documents that have words
      std::vector<bool> has_words;
      std::int64_t text_bytes = 0;
    };
    const auto make_work = [this] {
      return [this, shingler = DocumentShingler(options_)](const CorpusBlock& block, Keys& result) mutable {
        const std::size_t records = block.text.records.size();
        result.keys.clear();
        result.has_words.assign(records, false);
        result.text_bytes = 0;
        std::string unused;
        append_record(block.text, 0, options_.text.format, unused);  // refuses what has no records
        for (std::size_t i = 0; i < records; ++i) {
          const auto& shingles = shingler.shingles(block.text, i);
          result.text_bytes += static_cast<std::int64_t>(shingler.text_bytes());
          if (shingles.empty()) continue;
          result.has_words[i] = true;
          result.keys.resize(result.keys.size() + keys_);
          const std::span<std::uint32_t> keys = std::span(result.keys).last(keys_);
          hasher_.band_keys(shingles, keys.first(keys_ - 1));
          // A sum does not depend on the order, so it is the set's where texts repeat no shingle.
          keys.back() =
              static_cast<std::uint32_t>(std::accumulate(shingles.begin(), shingles.end(), std::uint64_t{0}) >> 32);
        }
      };
    };
    pass<Keys>("signatures", make_work, [&](const CorpusBlock& block, Keys& result) {
      const std::size_t records = block.text.records.size();
      if (block.first_document + static_cast<std::int64_t>(records) >= kNoCandidate)
        throw ConfigError(rule_got_fix("one run takes at most 4294967294 documents.", "more", "split the inputs"));
      result_.text_bytes += result.text_bytes;
      std::span<const std::uint32_t> keys(result.keys);
      for (std::size_t i = 0; i < records; ++i) {
        if (!result.has_words[i]) {
          ++result_.without_words;
          continue;
        }
        index_.add(static_cast<std::uint32_t>(block.first_document) + static_cast<std::uint32_t>(i), keys.first(keys_));
        keys = keys.subspan(keys_);
      }
    });
  }

  void number_candidates() {
    candidate_of_.assign(static_cast<std::size_t>(result_.documents), kNoCandidate);
    for (std::size_t band = 0; band < index_.bands(); ++band)
      index_.for_each_bucket(band, [&](std::span<const std::uint32_t> documents) {
        for (const std::uint32_t document : documents) candidate_of_[document] = 0;
      });
    std::uint32_t candidates = 0;
    for (std::uint32_t& candidate : candidate_of_)
      if (candidate != kNoCandidate) candidate = candidates++;
    result_.candidates = candidates;
    text_bytes_.reserve(candidates);
  }

  /// Pass 2.
  void keep_shingles() {
    if (result_.candidates == 0) return;
    struct Sets {
      std::vector<std::uint64_t> values;
      std::vector<std::size_t> sizes, text_bytes;
    };
    const auto make_work = [this] {
      return [this, shingler = DocumentShingler(options_), set = std::vector<std::uint64_t>()](const CorpusBlock& block,
                                                                                               Sets& result) mutable {
        result.values.clear();
        result.sizes.clear();
        result.text_bytes.clear();
        for (std::size_t i = 0; i < block.text.records.size(); ++i) {
          if (!is_candidate(block, i)) continue;
          set = shingler.shingles(block.text, i);
          make_set(set);
          result.values.insert(result.values.end(), set.begin(), set.end());
          result.sizes.push_back(set.size());
          result.text_bytes.push_back(shingler.text_bytes());
        }
      };
    };
    pass<Sets>("shingles", make_work, [&](const CorpusBlock&, Sets& result) {
      std::span<const std::uint64_t> values(result.values);
      for (std::size_t i = 0; i < result.sizes.size(); ++i) {
        sets_.add(values.first(result.sizes[i]));
        values = values.subspan(result.sizes[i]);
        text_bytes_.push_back(result.text_bytes[i]);
      }
    });
    if (sets_.size() != static_cast<std::size_t>(result_.candidates))
      throw std::runtime_error("the inputs changed while they were read");
    sets_.finish();
  }

  bool is_candidate(const CorpusBlock& block, std::size_t record) const {
    const std::size_t document = static_cast<std::size_t>(block.first_document) + record;
    return document < candidate_of_.size() && candidate_of_[document] != kNoCandidate;
  }

  /// Sets kept_ and the counts of clusters.
  void choose(const Clusters& clusters) {
    const auto n = static_cast<std::uint32_t>(sets_.size());
    result_.crowded_buckets = clusters.crowded_buckets;
    std::vector<std::uint32_t> best(n), sizes(n);
    for (std::uint32_t i = 0; i < n; ++i) {
      const std::uint32_t first = clusters.first[i];
      if (sizes[first]++ == 0) best[first] = i;
      if (options_.keep == KeptDocument::Longest && text_bytes_[i] > text_bytes_[best[first]]) best[first] = i;
    }
    kept_.resize(n);
    for (std::uint32_t i = 0; i < n; ++i) {
      kept_[i] = best[clusters.first[i]];
      result_.largest_cluster = std::max<std::int64_t>(result_.largest_cluster, sizes[i]);
      if (sizes[i] > 1) {
        ++result_.clusters;
        result_.duplicates += sizes[i] - 1;
      }
    }
    if (result_.documents > 0) result_.largest_cluster = std::max<std::int64_t>(result_.largest_cluster, 1);
  }

  /// Pass 3.
  void write_documents() {
    std::vector<std::uint32_t> documents(sets_.size());  // of the candidates
    for (std::uint32_t document = 0; document < candidate_of_.size(); ++document)
      if (candidate_of_[document] != kNoCandidate) documents[candidate_of_[document]] = document;
    struct Written {
      std::string kept, report;
    };
    const auto make_work = [&] {
      return [&, a = std::vector<std::uint64_t>(), b = std::vector<std::uint64_t>()](const CorpusBlock& block,
                                                                                     Written& result) mutable {
        result.kept.clear();
        result.report.clear();
        for (std::size_t i = 0; i < block.text.records.size(); ++i) {
          const std::uint32_t candidate =
              is_candidate(block, i) ? candidate_of_[static_cast<std::size_t>(block.first_document) + i] : kNoCandidate;
          if (candidate == kNoCandidate || kept_[candidate] == candidate) {
            if (output_) append_record(block.text, i, options_.text.format, result.kept);
          } else if (report_) {
            const double similarity = jaccard(sets_.get(candidate, a), sets_.get(kept_[candidate], b));
            result.report +=
                concat("{\"document\": ", documents[candidate], ", \"file\": ", json_string(block.text.file),
                       ", \"line\": ", block.text.records[i].line, ", \"kept\": ", documents[kept_[candidate]],
                       ", \"jaccard\": ", similarity, "}\n");
          }
        }
      };
    };
    pass<Written>("output", make_work, [&](const CorpusBlock&, Written& result) {
      if (output_) output_->write(result.kept);
      if (report_) report_->write(result.report);
    });
    if (output_) result_.output_bytes = output_->size();
  }

  const DedupOptions& options_;
  const OnDedupProgress& progress_;
  const MinHasher hasher_;
  const std::size_t keys_;  // a document's: one a band, and one of the whole set
  BandIndex index_;
  ShingleSets sets_;
  std::unique_ptr<OutputFile> output_, report_;
  std::vector<std::uint32_t> candidate_of_;  // of each document
  std::vector<std::size_t> text_bytes_;      // of each candidate
  std::vector<std::uint32_t> kept_;          // of each candidate: the one of its cluster that stays
  DedupResult result_;
};

}  // namespace

DedupResult deduplicate(const DedupOptions& options, const OnDedupProgress& progress) {
  if (options.workers < 1)
    throw ConfigError(rule_got_fix("there must be a worker.", concat(options.workers), "--workers 0, one a core"));
  if (!(options.threshold > 0 && options.threshold <= 1))
    throw ConfigError(rule_got_fix("a threshold of similarity must be above 0 and at most 1.",
                                   concat(options.threshold), "--threshold 0.7 (the default)"));
  Shingler{options.shingles};  // checks its options
  check_has_records(options.text);
  check_outputs({options.output, options.report}, options.text.inputs);
  data::BlockReader{options.text};  // checks that the inputs are there
  for (const std::string& input : options.text.inputs)
    if (input == "-")
      throw ConfigError(rule_got_fix("deduplication reads its inputs three times.", "standard input", "name files"));
  return Deduplication(options, progress).run();
}

}  // namespace megatron::corpus
