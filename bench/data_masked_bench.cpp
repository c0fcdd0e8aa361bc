#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "megatron/base/timer.h"
#include "megatron/data/samples/bert_dataset.h"
#include "megatron/data/samples/t5_dataset.h"

// One thread makes samples of BERT or T5; bench/masked_samples_peers.py compares it with Megatron-Core.
//
//   data_masked_bench bert|t5 PREFIX VOCAB.txt SEQ_LENGTH SAMPLES FETCHES
//
// Prints seconds for the index of SAMPLES samples, samples per second over FETCHES of them, and a sum over what was
// made.
namespace megatron::data {
namespace {

/// As Megatron-LM's tokenizer: the lines of vocab.txt, [BOS], [EOS], 100 sentinels.
MaskingVocabulary read_vocabulary(const std::string& path) {
  MaskingVocabulary vocabulary{.pad = 0, .cls = 101, .sep = 102, .mask = 103};
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) vocabulary.continues.push_back(line.starts_with("##") ? 1 : 0);
  vocabulary.begin = std::ssize(vocabulary.continues);
  vocabulary.end = vocabulary.begin + 1;
  for (std::int64_t i = 0; i < 100; ++i) vocabulary.sentinels.push_back(vocabulary.end + 1 + i);
  vocabulary.size = vocabulary.sentinels.back() + 1;
  vocabulary.continues.resize(static_cast<std::size_t>(vocabulary.size));
  return vocabulary;
}

std::int64_t sum_of(const std::vector<std::int64_t>& values) {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < values.size(); ++i) sum += static_cast<std::int64_t>(i + 1) * values[i];
  return sum;
}

/// Times `build` and then `fetch(i)`, which returns the sum over sample i.
template <class Build, class Open>
void measure(std::int64_t fetches, Build build, Open open) {
  Stopwatch watch;
  build();
  const double index_s = watch.seconds();
  const auto fetch = open();
  std::int64_t sum = 0;
  watch = Stopwatch();
  for (std::int64_t i = 0; i < fetches; ++i) sum += fetch(i);
  std::printf("{\"index_s\": %.6f, \"samples_per_s\": %.1f, \"sum\": %lld}\n", index_s,
              static_cast<double>(fetches) / watch.seconds(), static_cast<long long>(sum));
}

void run(const std::string& kind, const SentenceSource& source, const std::string& vocabulary, std::int64_t seq_length,
         std::int64_t fetches) {
  std::vector<std::int64_t> a(static_cast<std::size_t>(seq_length)), b(a), c(a);
  std::vector<float> mask(a.size());
  if (kind == "bert") {
    const BertDatasetSpec spec{.source = source, .seq_length = seq_length};
    measure(
        fetches, [&] { BertDataset::build(spec); },
        [&] {
          return [&, data = BertDataset(spec, read_vocabulary(vocabulary))](std::int64_t i) {
            data.get(i, {.tokens = a, .types = b, .labels = c, .loss_mask = mask});
            return sum_of(a) + sum_of(b) + sum_of(c);
          };
        });
  } else {
    const T5DatasetSpec spec{.source = source, .seq_length = seq_length, .decoder_seq_length = seq_length};
    measure(
        fetches, [&] { T5Dataset::build(spec); },
        [&] {
          return [&, data = T5Dataset(spec, read_vocabulary(vocabulary))](std::int64_t i) {
            data.get(i, {.encoder_tokens = a, .decoder_tokens = b, .labels = c, .loss_mask = mask});
            return sum_of(a) + sum_of(b) + sum_of(c);
          };
        });
  }
}

}  // namespace
}  // namespace megatron::data

int main(int argc, char** argv) try {
  const std::vector<std::string> words(argv, argv + argc);
  if (words.size() != 7) return std::fprintf(stderr, "bert|t5 PREFIX VOCAB.txt SEQ_LENGTH SAMPLES FETCHES\n"), 2;
  const auto cache = std::filesystem::temp_directory_path() / ("megatron-masked-" + words[1]);
  std::filesystem::remove_all(cache);
  megatron::data::run(
      words[1], {.prefix = words[2], .split = "1", .num_samples = std::stoll(words[5]), .cache_folder = cache.string()},
      words[3], std::stoll(words[4]), std::stoll(words[6]));
  std::filesystem::remove_all(cache);
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
