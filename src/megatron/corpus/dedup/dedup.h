#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "megatron/corpus/dedup/minhash.h"
#include "megatron/corpus/threads.h"
#include "megatron/corpus/words.h"
#include "megatron/data/files/text_reader.h"

namespace megatron::corpus {

/// Which document of a cluster stays.
enum class KeptDocument : std::uint8_t {
  First,    ///< of the input
  Longest,  ///< most bytes of text; of equal ones the first
};

struct DedupOptions {
  data::TextReaderOptions text = {};
  std::string output = "";  ///< the documents that stay, byte for byte, in their order; empty: not written
  std::string report = "";  ///< a JSON line for each document that goes; empty: not written
  double threshold = 0.7;   ///< documents at least as similar as this are duplicates (Shoeybi et al. 2019, section 4.1)
  ShingleOptions shingles = {};
  int hashes = 128;         ///< places of a signature
  int bands = 0, rows = 0;  ///< 0: choose_bands(hashes, threshold)
  KeptDocument keep = KeptDocument::First;
  std::uint64_t seed = 1;                           ///< of the signatures
  std::size_t memory_bytes = std::size_t{2} << 30;  ///< for keys and shingles; what is more lies in temporary files
  std::string temporary_folder = ".";
  int workers = 1;
};

struct DedupResult {
  std::int64_t documents = 0;
  std::int64_t without_words = 0;  ///< documents without a word; they stay
  std::int64_t candidates = 0;     ///< documents that share a band with another
  std::int64_t clusters = 0;       ///< of two documents or more
  std::int64_t largest_cluster = 0;
  std::int64_t duplicates = 0;       ///< documents that go
  std::int64_t crowded_buckets = 0;  ///< buckets of which not all pairs were compared
  std::int64_t text_bytes = 0;       ///< of all documents
  std::int64_t output_bytes = 0;
  bool spilled = false;  ///< something did not fit into memory_bytes
  Bands bands;
};

/// What a pass over the inputs is doing; bytes read in it, all bytes.
using OnDedupProgress = std::function<void(const char* pass, std::int64_t, std::int64_t)>;

/// Clusters of documents that are near-duplicates of one another, of which one stays. Three passes over the inputs:
///
///   1. Each document's shingles become a MinHash signature, that the keys of its bands. Keys are sorted by band;
///      documents that share one are candidates.
///   2. The shingles of the candidates are kept, sorted. Pairs within a bucket are compared exactly, as sets of 64-bit
///      hashes (two different shingles of one pair are equal once in 2^64), unless they are in one cluster already;
///      those with a Jaccard similarity of at least `threshold` are united. So every two documents of a cluster are
///      linked by pairs that are that similar, and no pair is united that is not.
///   3. What stays is written.
///
/// The result depends on the inputs and the options but not on workers or memory_bytes. A bucket costs time in
/// proportion to its documents: with more than 2 * kNeighbours distinct ones in it, each is compared with the
/// first kNeighbours and with the kNeighbours before it. Documents that are equal as sets of shingles are found before
/// and count once.
///
/// Memory: up to memory_bytes, and whatever that is 4 bytes per document, 40 per candidate and a block per thread;
/// without spilling 8 (bands + 1) bytes per document and 8 per shingle of a candidate. Throws ConfigError for standard
/// input, which cannot be read three times, and std::runtime_error where the inputs change meanwhile. Nothing is under
/// the final names before all is written.
DedupResult deduplicate(const DedupOptions& options, const OnDedupProgress& progress = {});

inline constexpr std::size_t kNeighbours = 64;

}  // namespace megatron::corpus
