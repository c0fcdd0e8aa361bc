#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

// A main() for fuzz targets where libFuzzer is not linked: runs each file of a corpus as it is, then mutations of them.
// The same arguments give the same inputs, whatever the machine.
//
//   idx_fuzz --runs 100000 [--seed N] [--keep] CORPUS…
//
// An input that takes longer than 10 s ends the program. With --keep, what ends it is left in ./crash-input.

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using Bytes = std::vector<std::uint8_t>;

class Mutator {
 public:
  Mutator(const std::vector<Bytes>& corpus, std::uint64_t seed) : corpus_(corpus), engine_(seed) {}

  Bytes next() {
    Bytes input = corpus_[below(corpus_.size())];
    for (std::uint64_t n = 1 + below(4); n > 0; --n) mutate(input);
    return input;
  }

 private:
  std::uint64_t below(std::uint64_t n) { return n == 0 ? 0 : engine_() % n; }

  /// A number of 1, 2, 4 or 8 bytes that code tends to forget, or one that is off by little.
  void put_number(Bytes& input) {
    const std::size_t width = std::size_t{1} << below(4);
    if (input.size() < width) return;
    const std::size_t at = below(input.size() - width + 1);
    constexpr std::uint64_t kEdges[] = {0,          1,          ~0ull,      1ull << 63, ~0ull >> 1,
                                        0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xFFFF,     0x7FFF};
    std::uint64_t value = 0;
    std::memcpy(&value, input.data() + at, width);
    value = below(2) == 0 ? kEdges[below(std::size(kEdges))] : value + below(33) - 16;
    std::memcpy(input.data() + at, &value, width);
  }

  void mutate(Bytes& input) {
    const auto at = static_cast<std::ptrdiff_t>(below(input.size() + 1));
    const auto length = static_cast<std::ptrdiff_t>(
        std::min<std::uint64_t>(1 + below(32), input.size() - static_cast<std::size_t>(at)));
    switch (below(8)) {
      case 0:
      case 1:
        return put_number(input);
      case 2:
        if (!input.empty()) input[below(input.size())] ^= static_cast<std::uint8_t>(1u << below(8));
        return;
      case 3:
        input.resize(static_cast<std::size_t>(at));
        return;
      case 4:
        input.erase(input.begin() + at, input.begin() + at + length);
        return;
      case 5:
        input.insert(input.begin() + at, 1 + below(16), static_cast<std::uint8_t>(below(256)));
        return;
      case 6: {  // a piece of the input again
        const Bytes piece(input.begin() + at, input.begin() + at + length);
        input.insert(input.begin() + static_cast<std::ptrdiff_t>(below(input.size() + 1)), piece.begin(), piece.end());
        return;
      }
      default: {  // the end of another one
        const Bytes& other = corpus_[below(corpus_.size())];
        input.resize(static_cast<std::size_t>(at));
        input.insert(input.end(), other.begin() + static_cast<std::ptrdiff_t>(below(other.size() + 1)), other.end());
        return;
      }
    }
  }

  const std::vector<Bytes>& corpus_;
  std::mt19937_64 engine_;
};

Bytes read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<Bytes> read_corpus(const std::vector<std::string>& paths) {
  std::vector<std::filesystem::path> files;
  for (const std::string& path : paths) {
    if (!std::filesystem::is_directory(path)) {
      files.emplace_back(path);
      continue;
    }
    for (const auto& entry : std::filesystem::recursive_directory_iterator(path))
      if (entry.is_regular_file()) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  std::vector<Bytes> corpus;
  for (const auto& file : files) corpus.push_back(read_file(file));
  return corpus;
}

/// Runs an input from memory of its exact size, so that a read past the end is seen. With `keep` it lies on disk
/// meanwhile, which costs more than the run.
void run(const Bytes& input, bool keep) {
  if (keep)
    std::ofstream("crash-input", std::ios::binary)
        .write(reinterpret_cast<const char*>(input.data()), static_cast<std::streamsize>(input.size()));
  std::uint8_t* exact = new std::uint8_t[input.size()];
  if (!input.empty()) std::memcpy(exact, input.data(), input.size());
  constexpr unsigned kSeconds = 10;  // of one input; what takes longer hangs, and SIGALRM ends the program
  ::alarm(kSeconds);
  LLVMFuzzerTestOneInput(exact, input.size());
  ::alarm(0);
  delete[] exact;
}

}  // namespace

int main(int argc, char** argv) {
  std::uint64_t runs = 0, seed = 1;
  bool keep = false;
  std::vector<std::string> paths;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--runs" && i + 1 < argc)
      runs = std::strtoull(argv[++i], nullptr, 10);
    else if (word == "--seed" && i + 1 < argc)
      seed = std::strtoull(argv[++i], nullptr, 10);
    else if (word == "--keep")
      keep = true;
    else
      paths.push_back(word);
  }
  const std::vector<Bytes> corpus = read_corpus(paths);
  if (corpus.empty()) {
    std::fprintf(stderr, "usage: %s --runs N [--seed N] [--keep] CORPUS…\n", argv[0]);
    return 2;
  }
  const auto begin = std::chrono::steady_clock::now();
  for (const Bytes& input : corpus) run(input, keep);
  Mutator mutator(corpus, seed);
  for (std::uint64_t i = 0; i < runs; ++i) run(mutator.next(), keep);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  if (keep) std::filesystem::remove("crash-input");
  std::printf("%zu files and %llu mutations in %.1f s\n", corpus.size(), static_cast<unsigned long long>(runs),
              seconds.count());
  return 0;
}
