#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "megatron/corpus/overlap/cut.h"
#include "megatron/corpus/overlap/test_set.h"
#include "megatron/corpus/threads.h"
#include "megatron/data/files/text_reader.h"

namespace megatron::corpus {

struct OverlapOptions {
  data::TextReaderOptions training = {};
  TestSetOptions test = {};
  int ngram = 8;            ///< words (Shoeybi et al. 2019, section 5.2, after Radford et al. 2019: 8)
  int min_ngram = 8;        ///< a test document of fewer than `ngram` words, and at least these, is one n-gram
  std::string report = "";  ///< a JSON line for each test document; empty: not written
  std::string output = "";  ///< the training documents without what they share with the test set; empty: not written
  CutOptions cut = {};
  std::int64_t common = 10;  ///< n-grams that the training text has at least as often are common phrases and are not
                             ///< cut out; 0: all are
  int workers = 1;
};

struct OverlapResult {
  std::int64_t test_documents = 0;
  std::int64_t documents_with_ngrams = 0;  ///< test documents of at least min_ngram words
  std::int64_t documents_touched = 0;      ///< test documents of which an n-gram occurs in the training text
  std::int64_t ngrams = 0, found = 0;      ///< of the test set as they stand in it, and of them those that occur
  std::int64_t distinct = 0, distinct_found = 0;
  std::int64_t training_documents = 0, training_words = 0;

  std::int64_t common_phrases = 0;  ///< n-grams left alone for `common`
  std::int64_t matched = 0;         ///< training documents with an n-gram to cut out; the next four are of these
  std::int64_t trimmed = 0;         ///< one piece is left
  std::int64_t split = 0;           ///< several pieces are left
  std::int64_t emptied = 0;         ///< nothing is left
  std::int64_t shattered = 0;       ///< more than max_pieces were left: the document goes
  std::int64_t pieces = 0;          ///< written in place of those that were trimmed or split

  /// found of ngrams in percent: the paper's number. 0 where there are none.
  double percent() const;
};

/// What share of the n-grams of a test set a training text has, and that text without them. Words are those of words.h;
/// n-grams are compared as hashes of 64 bits (a foreign one passes for one of m test n-grams once in 2^64 / m).
///
/// One pass over the training text counts; with `output` a second one cuts (see cut_out) and writes. A document in
/// which nothing is to be cut out is written byte for byte. A piece of a JSON line is that line with the piece as the
/// text and a member "split_id": "overlap-<document from 1, ten digits>-<piece from 0, four digits>", after the
/// document's own split_id and '-' where it has one. At one place the longest n-gram decides.
///
/// Memory: about 50 bytes per word of the test set, and a block per thread. The result does not depend on `workers`.
/// Throws ConfigError for bad input, and with `output` for standard input, which cannot be read twice.
OverlapResult overlap(const OverlapOptions& options, const OnProgress& progress = {});

}  // namespace megatron::corpus
