#include <fcntl.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

// A main() for fuzz targets where libFuzzer is not linked: runs each file of a corpus as it is, then mutations of them.
// The same arguments give the same inputs, whatever the machine.
//
//   idx_fuzz --runs 100000 [--seed N] [--keep FILE] CORPUS…
//
// An input that takes more than 10 s of processor time ends the program by SIGPROF. With --keep the input at hand lies
// in FILE, so that what ends the program can be run again: idx_fuzz FILE.

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

double processor_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

class Runner {
 public:
  /// `keep`: the file that holds the input at hand, or "".
  explicit Runner(const std::string& keep) : keep_(keep) {
    if (keep.empty()) return;
    file_ = ::open(keep.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (file_ < 0) std::perror(keep.c_str()), std::exit(2);
  }
  ~Runner() {
    if (file_ < 0) return;
    ::close(file_);
    ::unlink(keep_.c_str());
  }
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  /// Runs an input from memory of its exact size, so that a read past the end is seen.
  void run(const Bytes& input) {
    if (file_ >= 0 && (::ftruncate(file_, 0) != 0 ||
                       ::pwrite(file_, input.data(), input.size(), 0) != static_cast<ssize_t>(input.size())))
      std::perror(keep_.c_str()), std::exit(2);
    std::uint8_t* exact = new std::uint8_t[input.size()];
    if (!input.empty()) std::memcpy(exact, input.data(), input.size());
    const double begin = processor_seconds();
    limit(kSeconds);
    LLVMFuzzerTestOneInput(exact, input.size());
    limit(0);
    slowest_ = std::max(slowest_, processor_seconds() - begin);
    delete[] exact;
    ++count_;
    const auto now = std::chrono::steady_clock::now();
    if (now - said_ < std::chrono::minutes(1)) return;
    said_ = now;
    std::fprintf(stderr, "%llu inputs, the slowest %.2f s\n", count_, slowest_);
  }

  /// Processor time of the input that took the longest.
  double slowest() const { return slowest_; }

 private:
  static constexpr time_t kSeconds = 10;  // of processor time for one input: what takes longer hangs
  static void limit(time_t seconds) {
    const itimerval timer{.it_interval = {}, .it_value = {.tv_sec = seconds, .tv_usec = 0}};
    ::setitimer(ITIMER_PROF, &timer, nullptr);
  }

  std::string keep_;
  int file_ = -1;
  double slowest_ = 0;
  unsigned long long count_ = 0;
  std::chrono::steady_clock::time_point said_ = std::chrono::steady_clock::now();
};

}  // namespace

int main(int argc, char** argv) {
  std::uint64_t runs = 0, seed = 1;
  std::string keep;
  std::vector<std::string> paths;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--runs" && i + 1 < argc)
      runs = std::strtoull(argv[++i], nullptr, 10);
    else if (word == "--seed" && i + 1 < argc)
      seed = std::strtoull(argv[++i], nullptr, 10);
    else if (word == "--keep" && i + 1 < argc)
      keep = argv[++i];
    else
      paths.push_back(word);
  }
  const std::vector<Bytes> corpus = read_corpus(paths);
  if (corpus.empty()) {
    std::fprintf(stderr, "usage: %s --runs N [--seed N] [--keep FILE] CORPUS…\n", argv[0]);
    return 2;
  }
  const auto begin = std::chrono::steady_clock::now();
  Runner runner(keep);
  for (const Bytes& input : corpus) runner.run(input);
  Mutator mutator(corpus, seed);
  for (std::uint64_t i = 0; i < runs; ++i) runner.run(mutator.next());
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  std::printf("%zu files and %llu mutations in %.1f s, the slowest %.2f s\n", corpus.size(),
              static_cast<unsigned long long>(runs), seconds.count(), runner.slowest());
  return 0;
}
