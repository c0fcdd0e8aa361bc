#include <benchmark/benchmark.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <string>

#include "megatron/data/preprocess/preprocess.h"
#include "megatron/data/samples/gpt_dataset.h"

// The data path without a tokenizer: what reading, parsing, writing, ordering and fetching cost by themselves.
namespace megatron::data {
namespace {

class Folder {
 public:
  Folder() : path_(std::filesystem::temp_directory_path() / "megatron-data-bench") {
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

/// Documents of 1 to 1000 tokens.
void write_pair(const std::string& prefix, std::int64_t documents) {
  std::mt19937 random(1);
  IndexedDatasetWriter writer(prefix, DType::U16);
  for (std::int64_t d = 0; d < documents; ++d) {
    const std::vector<std::int32_t> tokens(1 + random() % 1000, static_cast<std::int32_t>(d % 50000));
    const auto length = static_cast<std::int32_t>(tokens.size());
    writer.add_document(tokens, {&length, 1});
  }
  writer.publish();
}

void BM_PreprocessWithoutTokenizer(benchmark::State& state) {
  const Folder folder;
  std::string line = "{\"text\": \"";
  for (int i = 0; i < 500; ++i) line += "some words of text ";
  line += "\"}\n";
  constexpr std::int64_t kLines = 4000;
  {
    std::ofstream out(folder / "in.jsonl");
    for (std::int64_t i = 0; i < kLines; ++i) out << line;
  }
  PreprocessOptions options{.output_prefix = folder / "out", .workers = static_cast<int>(state.range(0))};
  options.text.inputs = {folder / "in.jsonl"};
  const TextEncoder encoder{
      .make = [] { return [](std::string_view, std::vector<std::int32_t>& ids) { return ids.push_back(1), 0; }; },
      .vocab_size = 100};
  for (auto _ : state) benchmark::DoNotOptimize(preprocess(options, encoder).pairs.front().tokens);
  state.SetBytesProcessed(state.iterations() * kLines * static_cast<std::int64_t>(line.size()));
}
BENCHMARK(BM_PreprocessWithoutTokenizer)->Arg(1)->Arg(2)->Unit(benchmark::kMillisecond)->UseRealTime();

GptDatasetSpec spec_of(const std::string& prefix) {
  GptDatasetSpec spec{.prefix = prefix, .split = "1"};
  spec.index.seq_length = 1024;
  return spec;
}

void BM_BuildGptIndex(benchmark::State& state) {
  const Folder folder;
  write_pair(folder / "pair", state.range(0));
  const IndexedDataset pair(folder / "pair");
  const auto spec = spec_of(folder / "pair").index;
  const GptIndexFiles files{folder / "d.npy", folder / "s.npy", folder / "x.npy"};
  for (auto _ : state) benchmark::DoNotOptimize(build_gpt_index(pair, {0, pair.size()}, spec, files).samples);
  state.counters["documents/s"] =
      benchmark::Counter(static_cast<double>(state.range(0)), benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(BM_BuildGptIndex)->Arg(10000)->Arg(300000)->Unit(benchmark::kMillisecond)->UseRealTime();

void BM_GetSample(benchmark::State& state) {
  const Folder folder;
  write_pair(folder / "pair", 20000);
  const auto spec = spec_of(folder / "pair");
  GptDataset::build(spec);
  const GptDataset data(spec, {.eod = 0});
  std::vector<std::int64_t> tokens(1024), labels(1024), positions(1024);
  std::vector<float> mask(1024);
  std::int64_t i = 0;
  for (auto _ : state) {
    data.get(i, {.tokens = tokens, .labels = labels, .loss_mask = mask, .position_ids = positions});
    benchmark::DoNotOptimize(tokens.data());
    i = (i + 1) % data.size();
  }
  state.counters["tokens/s"] = benchmark::Counter(1024, benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(BM_GetSample)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace megatron::data

BENCHMARK_MAIN();
