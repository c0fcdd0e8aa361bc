#include "megatron/corpus/dedup/dedup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "megatron/data/files/byte_stream.h"
#include "tests/corpus/support.h"

namespace megatron::corpus {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class DedupTest : public testing::Test {
 protected:
  DedupOptions options(const std::string& content, const std::string& name = "in.jsonl") {
    write_bytes(folder_ / name, content);
    DedupOptions result{.output = folder_ / "out.jsonl", .report = folder_ / "report.jsonl"};
    result.text.inputs = {folder_ / name};
    result.text.block_bytes = 4096;
    result.temporary_folder = folder_.path();
    result.workers = 2;
    return result;
  }
  std::vector<std::string> output() { return lines_of(read_bytes(folder_ / "out.jsonl")); }
  std::vector<nlohmann::json> report() {
    std::vector<nlohmann::json> rows;
    for (const std::string& line : lines_of(read_bytes(folder_ / "report.jsonl")))
      rows.push_back(nlohmann::json::parse(line));
    return rows;
  }
  /// Of each document the one that stands for it.
  std::vector<std::size_t> kept(std::size_t documents) {
    std::vector<std::size_t> result(documents);
    std::iota(result.begin(), result.end(), 0);
    for (const auto& row : report()) result[row["document"].get<std::size_t>()] = row["kept"].get<std::size_t>();
    return result;
  }
  TemporaryFolder folder_;
};

/// Families of texts: an original and variants in which some words are others.
std::vector<std::string> families(std::mt19937& engine, int count, int words, unsigned vocabulary) {
  std::vector<std::string> texts;
  for (int i = 0; i < count; ++i) {
    const auto original = random_words(engine, words + static_cast<int>(engine() % 20), vocabulary);
    texts.push_back(join(original));
    for (unsigned variants = engine() % 4; variants > 0; --variants) {
      auto variant = original;
      for (unsigned changes = engine() % 9; changes > 0; --changes)
        variant[engine() % variant.size()] = "other" + std::to_string(engine() % 1000);
      if (engine() % 4 == 0) variant.resize(variant.size() - engine() % 15);
      texts.push_back(join(variant));
    }
  }
  std::shuffle(texts.begin(), texts.end(), engine);
  return texts;
}

struct Truth {
  std::vector<std::vector<double>> jaccard;  // [i][j], j < i
  /// Documents that pairs of at least `threshold` connect, where `among` says that a pair may.
  template <class Among>
  std::vector<std::size_t> components(double threshold, Among among) const {
    std::vector<std::size_t> first(jaccard.size());
    std::iota(first.begin(), first.end(), 0);
    for (bool changed = true; changed;) {
      changed = false;
      for (std::size_t i = 0; i < jaccard.size(); ++i)
        for (std::size_t j = 0; j < i; ++j)
          if (jaccard[i][j] >= threshold && among(i, j) && first[i] != first[j]) {
            first[i] = first[j] = std::min(first[i], first[j]);
            changed = true;
          }
    }
    return first;
  }
};

Truth truth_of(const std::vector<std::string>& texts, std::size_t n) {
  std::vector<std::set<std::string>> sets;
  for (const std::string& text : texts) {
    const auto ngrams = naive_ngrams(text, n);
    sets.emplace_back(ngrams.begin(), ngrams.end());
  }
  Truth truth;
  for (std::size_t i = 0; i < sets.size(); ++i) {
    truth.jaccard.emplace_back();
    for (std::size_t j = 0; j < i; ++j) truth.jaccard[i].push_back(naive_jaccard(sets[i], sets[j]));
  }
  return truth;
}

std::string as_json_lines(const std::vector<std::string>& texts) {
  std::string content;
  for (const std::string& text : texts) content += json_line(text);
  return content;
}

TEST_F(DedupTest, FindsWhatBruteForceFindsAndNothingElse) {
  std::int64_t near = 0, near_found = 0, at_threshold = 0, at_threshold_found = 0;
  for (unsigned seed = 0; seed < 6; ++seed) {
    std::mt19937 engine(seed);
    const auto texts = families(engine, 90, 100, seed % 2 == 0 ? 5000 : 60);
    const Truth truth = truth_of(texts, 5);
    deduplicate(options(as_json_lines(texts)));
    const auto found = kept(texts.size());
    const auto cluster = [&](std::size_t i, std::size_t j) { return found[i] == found[j]; };
    for (std::size_t i = 0; i < texts.size(); ++i)
      for (std::size_t j = 0; j < i; ++j) {
        if (truth.jaccard[i][j] >= 0.8) {
          ++near;
          near_found += cluster(i, j) ? 1 : 0;
        } else if (truth.jaccard[i][j] >= 0.7) {
          ++at_threshold;
          at_threshold_found += cluster(i, j) ? 1 : 0;
        }
      }
    // Precision 1: inside each cluster, pairs that are similar enough connect all its documents.
    const auto connected = truth.components(0.7, cluster);
    for (std::size_t i = 0; i < texts.size(); ++i) {
      EXPECT_EQ(connected[i], connected[found[i]]) << "document " << i << " is like none of its cluster";
    }
    for (const auto& row : report()) {
      const auto a = row["document"].get<std::size_t>(), b = row["kept"].get<std::size_t>();
      EXPECT_NEAR(row["jaccard"].get<double>(), truth.jaccard[std::max(a, b)][std::min(a, b)], 1e-5);
      EXPECT_EQ(row["line"].get<std::size_t>(), a + 1);
    }
  }
  EXPECT_GT(near, 40);
  EXPECT_GT(at_threshold, 20);
  EXPECT_GE(static_cast<double>(near_found), 0.98 * static_cast<double>(near));
  EXPECT_GE(static_cast<double>(at_threshold_found), 0.9 * static_cast<double>(at_threshold));
}

TEST_F(DedupTest, GivesTheSameBytesWithAnyThreadsAndAnyMemory) {
  std::mt19937 engine(7);
  const std::string content = as_json_lines(families(engine, 400, 60, 300));
  std::string first_output, first_report;
  for (const int workers : {1, 2, 5})
    for (const std::size_t memory : {std::size_t{1} << 30, std::size_t{60000}, std::size_t{0}}) {
      DedupOptions wanted = options(content);
      wanted.workers = workers;
      wanted.memory_bytes = memory;
      const DedupResult result = deduplicate(wanted);
      EXPECT_EQ(result.spilled, memory < 1 << 30);
      EXPECT_GT(result.duplicates, 100);
      const std::string out = read_bytes(folder_ / "out.jsonl"), rows = read_bytes(folder_ / "report.jsonl");
      if (first_output.empty()) {
        first_output = out;
        first_report = rows;
      }
      EXPECT_EQ(out, first_output) << workers << " threads, " << memory << " bytes";
      EXPECT_EQ(rows, first_report) << workers << " threads, " << memory << " bytes";
    }
}

TEST_F(DedupTest, FindsCopiesPlantedInNovels) {
  const std::string path = data::shared_folder() + "/data/text/english_novels_98.jsonl.zst";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "no " << path;
  std::mt19937 engine(5);
  data::TextReader reader({.inputs = {path}});
  std::vector<std::string> texts;
  std::vector<std::pair<std::size_t, std::size_t>> planted;
  std::string novel;
  for (int book = 0; book < 12 && reader.next(novel); ++book) {
    auto words = naive_words(novel);
    for (std::size_t at = 0; at + 150 <= words.size(); at += 150) {
      std::vector<std::string> document(words.begin() + static_cast<std::ptrdiff_t>(at),
                                        words.begin() + static_cast<std::ptrdiff_t>(at + 150));
      texts.push_back(join(document));
      if (engine() % 2 != 0) continue;
      for (unsigned changes = engine() % 4; changes > 0; --changes)
        document[engine() % document.size()] = words[engine() % words.size()];
      planted.emplace_back(texts.size(), texts.size() - 1);
      texts.push_back(join(document));
    }
  }
  DedupOptions wanted = options(as_json_lines(texts));
  wanted.text.block_bytes = 1 << 18;
  const DedupResult result = deduplicate(wanted);
  const auto found = kept(texts.size());
  std::int64_t near = 0, near_found = 0, of_plants = 0;
  for (const auto& [copy, original] : planted) {
    const Truth truth = truth_of({texts[original], texts[copy]}, 5);
    if (truth.jaccard[1][0] < 0.8) continue;
    ++near;
    near_found += found[copy] == found[original] ? 1 : 0;
  }
  for (const auto& row : report()) {
    const auto document = row["document"].get<std::size_t>();
    const bool is_planted = std::ranges::any_of(planted, [&](const auto& pair) { return pair.first == document; });
    of_plants += is_planted ? 1 : 0;
    if (is_planted) continue;
    const Truth truth = truth_of({texts[document], texts[row["kept"].get<std::size_t>()]}, 5);
    EXPECT_GE(truth.jaccard[1][0], 0.7) << texts[document];
  }
  EXPECT_GT(near, 40);
  EXPECT_GE(static_cast<double>(near_found), 0.98 * static_cast<double>(near));
  EXPECT_GE(of_plants, near_found);
  EXPECT_LT(result.duplicates, static_cast<std::int64_t>(planted.size()) + 20);
}

TEST_F(DedupTest, KeepsLinesByteForByteInTheirOrder) {
  const std::vector<std::string> lines = {R"({"id": 1.50, "text" : "One, two - three.",  "x":[1, {"a":"\u00e9"}] })",
                                          R"({"text": "something else"})",
                                          R"(  {"text": "ONE two three", "id": 3})",
                                          R"({"text": ["one two", "three"]})",
                                          R"({"text": ""})",
                                          R"({"text": "?!"})",
                                          R"({"text": ""})"};
  std::string content;
  for (const std::string& line : lines) content += line + "\r\n\n";
  const DedupResult result = deduplicate(options(content));
  EXPECT_THAT(output(), ElementsAre(lines[0], lines[1], lines[4], lines[5], lines[6]));
  EXPECT_EQ(result.documents, 7);
  EXPECT_EQ(result.without_words, 3);
  EXPECT_EQ(result.duplicates, 2);
  EXPECT_EQ(result.clusters, 1);
  EXPECT_EQ(result.largest_cluster, 3);
  EXPECT_EQ(result.output_bytes, static_cast<std::int64_t>(read_bytes(folder_ / "out.jsonl").size()));
}

TEST_F(DedupTest, KeepsTheLongestWhereThatIsAsked) {
  DedupOptions wanted =
      options(json_line("a b c d") + json_line("unique") + json_line("A, b, c - d!") + json_line("a.b.c...d..."));
  wanted.keep = KeptDocument::Longest;
  deduplicate(wanted);
  EXPECT_THAT(output(), ElementsAre(R"({"text": "unique"})", R"({"text": "A, b, c - d!"})"));
  EXPECT_THAT(kept(4), ElementsAre(2, 1, 2, 2));
}

TEST_F(DedupTest, TakesLinesThatAreNotUtf8) {
  DedupOptions wanted = options("ab\xFF cd\nother\n\xFE ab, cd\n\xFF\xFF\n\xFF\xFF\n", "in.txt");
  wanted.text.format = data::TextFormat::Lines;
  EXPECT_EQ(deduplicate(wanted).duplicates, 1);
  EXPECT_EQ(read_bytes(folder_ / "out.jsonl"), "ab\xFF cd\nother\n\xFF\xFF\n\xFF\xFF\n");
}

TEST_F(DedupTest, SeparatesParagraphsByABlankLine) {
  DedupOptions wanted = options("one\ntwo\n\n\n\nthree\n\nOne two\n", "in.txt");
  wanted.text.format = data::TextFormat::Paragraphs;
  deduplicate(wanted);
  EXPECT_EQ(read_bytes(folder_ / "out.jsonl"), "one\ntwo\n\nthree\n\n");
}

TEST_F(DedupTest, ComparesEachCopyOnceAndCrowdedBucketsInPart) {
  // 20,000 copies of one text and 400 variants of another, of which each differs from all others in its last words.
  std::mt19937 engine(3);
  std::string content;
  const std::string copied = join(random_words(engine, 60, 5000));
  const auto varied = random_words(engine, 60, 5000);
  for (int i = 0; i < 20000; ++i) content += json_line(copied);
  for (int i = 0; i < 400; ++i) content += json_line(join(varied) + " v" + std::to_string(i));
  DedupOptions wanted = options(content);
  wanted.text.block_bytes = 1 << 20;
  const DedupResult result = deduplicate(wanted);
  EXPECT_EQ(result.documents, 20400);
  EXPECT_EQ(result.clusters, 2);
  EXPECT_EQ(result.largest_cluster, 20000);
  EXPECT_EQ(result.duplicates, 20398);
  EXPECT_GT(result.crowded_buckets, 0);
}

TEST_F(DedupTest, ReadsAndWritesCompressedFiles) {
  std::mt19937 engine(4);
  const auto texts = families(engine, 60, 40, 200);
  deduplicate(options(as_json_lines(texts)));
  const std::string plain = read_bytes(folder_ / "out.jsonl");
  for (const std::string name : {"out.jsonl.zst", "out.jsonl.gz", "out.jsonl.xz"}) {
    DedupOptions wanted = options(as_json_lines(texts));
    wanted.output = folder_ / name;
    deduplicate(wanted);
    EXPECT_LT(std::filesystem::file_size(wanted.output), plain.size());
    std::string unpacked(plain.size() + 1, '\0');
    data::ByteStream stream(wanted.output);
    unpacked.resize(stream.read(unpacked));
    EXPECT_EQ(unpacked, plain);
    wanted.text.inputs = {wanted.output};  // nothing of what it wrote goes
    wanted.output = folder_ / "again.jsonl";
    EXPECT_EQ(deduplicate(wanted).duplicates, 0);
    EXPECT_EQ(read_bytes(folder_ / "again.jsonl"), plain);
  }
}

TEST_F(DedupTest, RefusesANameThatPromisesAnotherCompression) {
  for (const std::string ending : {".bz2", ".lz4", ".lzma", ".zip"}) {
    DedupOptions wanted = options("{\"text\": \"good\"}\n");
    wanted.output = folder_ / ("new/out.jsonl" + ending);
    EXPECT_THAT(error_of([&] { deduplicate(wanted); }), HasSubstr("fix:  " + (folder_ / "new/out.jsonl.zst")));
    EXPECT_FALSE(std::filesystem::exists(folder_ / "new"));
  }
}

TEST_F(DedupTest, LeavesNothingWhereALineIsBad) {
  std::string content;
  for (int i = 0; i < 500; ++i) content += i % 100 == 57 ? "bad\n" : "{\"text\": \"good\"}\n";
  for (const int workers : {1, 4}) {
    DedupOptions wanted = options(content);
    wanted.workers = workers;
    EXPECT_THAT(error_of([&] { deduplicate(wanted); }), HasSubstr("in.jsonl, line 58"));
  }
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path()))
    names.push_back(entry.path().filename().string());
  EXPECT_THAT(names, ElementsAre("in.jsonl"));
}

TEST_F(DedupTest, RefusesWhatItCannotReadAgainOrWriteInParts) {
  const auto refusal = [&](auto change) {
    DedupOptions wanted = options(json_line("a"));
    change(wanted);
    return error_of([&] { deduplicate(wanted); });
  };
  EXPECT_THAT(refusal([](auto& o) { o.text.inputs = {"-"}; }), HasSubstr("three times"));
  EXPECT_THAT(refusal([](auto& o) { o.text.inputs = {"/nowhere"}; }), HasSubstr("/nowhere"));
  EXPECT_THAT(refusal([](auto& o) { o.text.format = data::TextFormat::File; }), HasSubstr("must be records"));
  EXPECT_THAT(refusal([](auto& o) { o.threshold = 1.5; }), HasSubstr("at most 1"));
  EXPECT_THAT(refusal([](auto& o) { o.bands = 3; }), HasSubstr("bands times rows"));
  EXPECT_THAT(refusal([](auto& o) { o.shingles.size = 0; }), HasSubstr("1 to 64"));
  DedupOptions text = options("plain text", "in.txt");
  EXPECT_THAT(error_of([&] { deduplicate(text); }), HasSubstr("a whole text"));
}

TEST_F(DedupTest, OfNothingWritesNothing) {
  const DedupResult result = deduplicate(options(""));
  EXPECT_EQ(result.documents, 0);
  EXPECT_EQ(result.largest_cluster, 0);
  EXPECT_EQ(read_bytes(folder_ / "out.jsonl"), "");
}

}  // namespace
}  // namespace megatron::corpus
