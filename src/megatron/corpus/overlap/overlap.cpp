#include "megatron/corpus/overlap/overlap.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <set>
#include <stdexcept>

#include "megatron/base/error.h"
#include "megatron/base/files/outputs.h"
#include "megatron/base/text/format.h"
#include "megatron/corpus/output_file.h"
#include "megatron/corpus/overlap/ngram_table.h"
#include "megatron/corpus/records.h"
#include "megatron/corpus/words.h"

namespace megatron::corpus {
namespace {

/// The n-grams of a test set, by document.
class TestNgrams {
 public:
  explicit TestNgrams(const OverlapOptions& options)
      : ngram_(static_cast<std::size_t>(options.ngram)), min_ngram_(static_cast<std::size_t>(options.min_ngram)) {
    read_test_set(options.test, [&](std::string_view text, const std::string& file, std::int64_t number) {
      add(text, file, number);
    });
  }

  struct Document {
    std::size_t file;
    std::int64_t number;
    std::size_t end;  // of its n-grams
  };
  const NgramTable& table() const { return table_; }
  const std::set<std::size_t>& lengths() const { return lengths_; }
  const std::vector<Document>& documents() const { return documents_; }
  const std::string& file(const Document& document) const { return files_[document.file]; }
  const std::vector<std::uint32_t>& ngrams() const { return ngrams_; }

 private:
  void add(std::string_view text, const std::string& file, std::int64_t number) {
    words_.clear();
    hashes_.clear();
    scanner_.scan(text, [&](const Word& word) { words_.push_back(word.hash); });
    const std::size_t length = std::min(ngram_, words_.size());
    if (length >= min_ngram_) {
      append_ngrams(words_, length, hashes_);
      lengths_.insert(length);
    }
    for (const std::uint64_t hash : hashes_) ngrams_.push_back(table_.add(hash));
    if (files_.empty() || files_.back() != file) files_.push_back(file);
    documents_.push_back({files_.size() - 1, number, ngrams_.size()});
  }

  std::size_t ngram_, min_ngram_;
  WordScanner scanner_;
  std::vector<std::uint64_t> words_, hashes_;
  NgramTable table_;
  std::set<std::size_t> lengths_;
  std::vector<std::string> files_;
  std::vector<Document> documents_;
  std::vector<std::uint32_t> ngrams_;
};

/// One thread's way from training records to the n-grams in them.
class Searcher {
 public:
  Searcher(const TestNgrams& test, const data::TextReaderOptions& text)
      : parser_(text), finder_(test.table(), test.lengths()) {}

  /// Calls found(NgramAt) for each; returns the number of words.
  template <class OnFound>
  std::size_t search(const data::TextBlock& block, std::size_t record, OnFound&& found) {
    text_ = joined(parser_.parse(block, record), buffer_);
    hashes_.clear();
    spans_.clear();
    scanner_.scan(text_, [&](const Word& word) {
      hashes_.push_back(word.hash);
      spans_.push_back({word.begin, word.end});
    });
    finder_.find(hashes_, found);
    return hashes_.size();
  }
  std::string_view text() const { return text_; }
  TextSpan place(const NgramAt& at) const { return {spans_[at.word].begin, spans_[at.word + at.length - 1].end}; }

 private:
  data::DocumentParser parser_;
  NgramFinder finder_;
  WordScanner scanner_;
  std::vector<std::uint64_t> hashes_;
  std::vector<TextSpan> spans_;
  std::string buffer_;
  std::string_view text_;
};

/// The record with a piece of its text in place of the text.
void append_piece(const data::TextBlock& block, std::size_t record, const data::TextReaderOptions& options,
                  std::string_view piece, const std::string& id, std::string& out) {
  if (!block.is_json) {
    out.append(piece) += options.format == data::TextFormat::Paragraphs ? "\n\n" : "\n";
    return;
  }
  const auto& at = block.records[record];
  std::string line(block.bytes, at.begin, at.size);
  const auto replace = [&](const std::string& key, const std::string& value) {
    const auto member = find_member(line, key);
    if (!member) throw std::logic_error("a member that was read is not there");
    line.replace(static_cast<std::size_t>(member->value.data() - line.data()), member->value.size(), value);
  };
  replace(options.json_key, json_string(piece));
  const auto own_id = find_member(line, "split_id");
  const auto own = own_id ? string_value(own_id->value) : std::nullopt;
  if (own_id)
    replace("split_id", json_string(own ? *own + "-" + id : id));
  else
    line = with_member(line, "\"split_id\": " + json_string(id));
  out += line + "\n";
}

class Overlap {
 public:
  Overlap(const OverlapOptions& options, const OnProgress& progress)
      : options_(options), progress_(progress), test_(options), counts_(test_.table().size()) {
    if (test_.ngrams().empty())
      throw ConfigError(rule_got_fix(concat("a test set must have a document of ", options.min_ngram, " words."),
                                     concat(test_.documents().size(), " shorter documents"),
                                     "--min-ngram 1, or a larger test set"));
  }

  OverlapResult run() {
    std::unique_ptr<OutputFile> report, output;
    if (!options_.report.empty()) report = std::make_unique<OutputFile>(options_.report);
    if (!options_.output.empty()) output = std::make_unique<OutputFile>(options_.output);
    count();
    sum_up(report.get());
    if (output) cut(*output);
    if (report) report->commit();
    if (output) output->commit();
    return result_;
  }

 private:
  template <class Result, class MakeWork, class Consume>
  std::int64_t pass(int number, MakeWork&& make_work, Consume&& consume) {
    data::BlockReader reader(options_.training);
    const int passes = options_.output.empty() ? 1 : 2;
    const std::int64_t total = reader.total_bytes().value_or(0);
    return for_each_block<Result>(reader, options_.workers, make_work, [&](const CorpusBlock& block, Result& result) {
      consume(block, result);
      if (progress_) progress_(block.text.input_position + (number - 1) * total, total * passes);
    });
  }

  void count() {
    const auto make_work = [&] {
      return [&, searcher = Searcher(test_, options_.training)](const CorpusBlock& block, std::int64_t& words) mutable {
        words = 0;
        for (std::size_t i = 0; i < block.text.records.size(); ++i)
          words += static_cast<std::int64_t>(searcher.search(
              block.text, i, [&](const NgramAt& at) { counts_[at.number].fetch_add(1, std::memory_order_relaxed); }));
      };
    };
    result_.training_documents = pass<std::int64_t>(
        1, make_work, [&](const CorpusBlock&, std::int64_t& words) { result_.training_words += words; });
  }

  bool occurs(std::uint32_t ngram) const { return counts_[ngram].load(std::memory_order_relaxed) > 0; }
  bool is_common(std::uint32_t ngram) const {
    const std::int64_t times = counts_[ngram].load(std::memory_order_relaxed);
    return options_.common > 0 && times >= options_.common;
  }

  void sum_up(OutputFile* report) {
    result_.test_documents = static_cast<std::int64_t>(test_.documents().size());
    result_.distinct = static_cast<std::int64_t>(test_.table().size());
    for (std::uint32_t i = 0; i < test_.table().size(); ++i) {
      result_.distinct_found += occurs(i) ? 1 : 0;
      result_.common_phrases += is_common(i) ? 1 : 0;
    }
    std::size_t begin = 0;
    for (std::size_t i = 0; i < test_.documents().size(); ++i) {
      const TestNgrams::Document& document = test_.documents()[i];
      const auto all = static_cast<std::int64_t>(document.end - begin);
      std::int64_t found = 0;
      for (; begin < document.end; ++begin) found += occurs(test_.ngrams()[begin]) ? 1 : 0;
      result_.ngrams += all;
      result_.found += found;
      result_.documents_with_ngrams += all > 0 ? 1 : 0;
      result_.documents_touched += found > 0 ? 1 : 0;
      if (report == nullptr) continue;
      const OverlapResult one{.ngrams = all, .found = found};
      report->write(concat("{\"document\": ", i, ", \"file\": ", json_string(test_.file(document)),
                           ", \"number\": ", document.number, ", \"ngrams\": ", all, ", \"found\": ", found,
                           ", \"percent\": ", one.percent(), "}\n"));
    }
  }

  struct Cut {
    std::string output;
    OverlapResult counts;
  };

  void cut_document(const CorpusBlock& block, std::size_t record, Searcher& searcher, std::vector<NgramAt>& found,
                    Cut& result) {
    found.clear();
    searcher.search(block.text, record, [&](const NgramAt& at) {
      if (!is_common(at.number)) found.push_back(at);
    });
    if (found.empty()) return append_record(block.text, record, options_.training.format, result.output);
    ++result.counts.matched;
    std::sort(found.begin(), found.end(), [](const NgramAt& a, const NgramAt& b) {
      return a.word != b.word ? a.word < b.word : a.length > b.length;
    });
    std::vector<TextSpan> matches;
    for (const NgramAt& at : found) matches.push_back(searcher.place(at));
    const auto pieces = cut_out(searcher.text(), matches, options_.cut);
    if (pieces.empty()) ++result.counts.emptied;
    if (pieces.size() == 1) ++result.counts.trimmed;
    if (pieces.size() > options_.cut.max_pieces) {
      ++result.counts.shattered;
      return;
    }
    if (pieces.size() > 1) ++result.counts.split;
    result.counts.pieces += static_cast<std::int64_t>(pieces.size());
    const auto number = static_cast<std::int64_t>(block.first_document) + static_cast<std::int64_t>(record) + 1;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const std::string id = fmt::format("overlap-{:010}-{:04}", number, i);
      append_piece(block.text, record, options_.training,
                   searcher.text().substr(pieces[i].begin, pieces[i].end - pieces[i].begin), id, result.output);
    }
  }

  void cut(OutputFile& output) {
    const auto make_work = [&] {
      return [&, searcher = Searcher(test_, options_.training), found = std::vector<NgramAt>()](
                 const CorpusBlock& block, Cut& result) mutable {
        result.output.clear();
        result.counts = {};
        for (std::size_t i = 0; i < block.text.records.size(); ++i) cut_document(block, i, searcher, found, result);
      };
    };
    const std::int64_t documents = pass<Cut>(2, make_work, [&](const CorpusBlock&, Cut& result) {
      output.write(result.output);
      result_.matched += result.counts.matched;
      result_.trimmed += result.counts.trimmed;
      result_.split += result.counts.split;
      result_.emptied += result.counts.emptied;
      result_.shattered += result.counts.shattered;
      result_.pieces += result.counts.pieces;
    });
    if (documents != result_.training_documents) throw std::runtime_error("the inputs changed while they were read");
  }

  const OverlapOptions& options_;
  const OnProgress& progress_;
  const TestNgrams test_;
  std::vector<std::atomic<std::uint32_t>> counts_;  // of each n-gram in the training text
  OverlapResult result_;
};

}  // namespace

double OverlapResult::percent() const {
  return ngrams == 0 ? 0 : 100 * static_cast<double>(found) / static_cast<double>(ngrams);
}

OverlapResult overlap(const OverlapOptions& options, const OnProgress& progress) {
  if (options.workers < 1)
    throw ConfigError(rule_got_fix("there must be a worker.", concat(options.workers), "--workers 0, one a core"));
  if (options.ngram < 1 || options.ngram > 64 || options.min_ngram < 1 || options.min_ngram > options.ngram)
    throw ConfigError(rule_got_fix("an n-gram must have 1 to 64 words, and the shortest no more than the others.",
                                   concat(options.min_ngram, " to ", options.ngram),
                                   "leave --ngram and --min-ngram out"));
  if (options.common < 0)
    throw ConfigError(rule_got_fix("a number of occurrences must be 0 or more.", concat(options.common),
                                   "--common 10 (the default)"));
  if (!options.output.empty()) {
    check_has_records(options.training);
    for (const std::string& input : options.training.inputs)
      if (input == "-")
        throw ConfigError(rule_got_fix("cutting reads the training text twice.", "standard input", "name files"));
  }
  std::vector<std::string> inputs = options.training.inputs;
  inputs.insert(inputs.end(), options.test.inputs.begin(), options.test.inputs.end());
  check_outputs({options.report, options.output}, inputs);
  data::BlockReader{options.training};  // checks that the inputs are there
  return Overlap(options, progress).run();
}

}  // namespace megatron::corpus
