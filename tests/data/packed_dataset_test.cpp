#include "megatron/data/samples/packed_dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <random>
#include <set>

#include "tests/data/support.h"

namespace megatron::data {
namespace {

/// Documents of the given lengths; token k of document d is 1000 d + k.
void write_documents(const std::string& prefix, const std::vector<std::int32_t>& lengths) {
  IndexedDatasetWriter writer(prefix, DType::I32);
  for (std::size_t d = 0; d < lengths.size(); ++d) {
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(lengths[d]));
    std::iota(tokens.begin(), tokens.end(), static_cast<std::int32_t>(1000 * d));
    writer.add_document(tokens, std::vector<std::int32_t>(lengths[d] > 0 ? 1 : 0, lengths[d]));
  }
  writer.publish();
}

struct Row {
  explicit Row(const Dataset& data, std::int64_t i)
      : tokens(static_cast<std::size_t>(data.seq_length())),
        labels(tokens),
        positions(tokens),
        mask(tokens.size()),
        first_key(tokens.size()) {
    data.get(
        i, {.tokens = tokens, .labels = labels, .loss_mask = mask, .position_ids = positions, .first_key = first_key});
  }
  std::vector<std::int64_t> tokens, labels, positions;
  std::vector<float> mask;
  std::vector<std::int32_t> first_key;
};

GptDatasetSpec spec_of(const TemporaryFolder& folder, std::int64_t seq_length, std::optional<std::int64_t> samples) {
  GptDatasetSpec spec{.prefix = folder / "pair", .split = "1"};
  spec.index = {.seq_length = seq_length, .seed = 7, .num_samples = samples};
  return spec;
}

std::vector<std::int32_t> random_lengths(std::uint32_t seed, std::size_t documents, int longest) {
  std::mt19937 random(seed);
  std::vector<std::int32_t> lengths(documents);
  for (auto& length : lengths) length = static_cast<std::int32_t>(random() % static_cast<std::uint32_t>(longest + 1));
  return lengths;
}

TEST(PackedDataset, HoldsEveryTokenWithItsLabelOnceAndNothingElse) {
  for (const std::uint32_t seed : {1u, 2u, 3u}) {
    TemporaryFolder folder;
    const auto lengths = random_lengths(seed, 60, 40);
    write_documents(folder / "pair", lengths);
    const PackedDataset data(spec_of(folder, 16, {}), Packing::BestFit, {});
    std::multiset<std::pair<std::int64_t, std::int64_t>> seen, expected;
    for (std::size_t d = 0; d < lengths.size(); ++d)
      for (std::int64_t k = 0; k + 1 < lengths[d]; ++k)
        expected.emplace(1000 * static_cast<std::int64_t>(d) + k, 1000 * static_cast<std::int64_t>(d) + k + 1);
    for (std::int64_t i = 0; i < data.size(); ++i) {
      const Row row(data, i);
      for (std::size_t k = 0; k < 16; ++k)
        if (row.mask[k] == 1) seen.emplace(row.tokens[k], row.labels[k]);
    }
    EXPECT_EQ(seen, expected);
  }
}

TEST(PackedDataset, KeepsDocumentsFromSeeingOneAnotherAndCountsTheirPositionsFromZero) {
  TemporaryFolder folder;
  write_documents(folder / "pair", random_lengths(5, 60, 40));
  const PackedDataset data(spec_of(folder, 16, {}), Packing::BestFit, {});
  for (std::int64_t i = 0; i < data.size(); ++i) {
    const Row row(data, i);
    for (std::size_t k = 0; k < 16; ++k) {
      const auto first = static_cast<std::size_t>(row.first_key[k]);
      EXPECT_EQ(row.positions[k], static_cast<std::int64_t>(k - first));
      const bool continues =
          k > 0 && row.mask[k] == row.mask[k - 1] && (row.mask[k] == 0 || row.tokens[k] == row.tokens[k - 1] + 1);
      EXPECT_EQ(first == k, !continues) << "sample " << i << ", place " << k;
    }
  }
}

/// How full each sample gets by best-fit decreasing as its definition says it, with a look at every sample's room.
std::multiset<std::int64_t> brute_force(std::vector<std::int64_t> pieces, std::int64_t seq_length) {
  std::ranges::sort(pieces, std::greater());
  std::vector<std::int64_t> filled;
  for (const std::int64_t piece : pieces) {
    std::size_t best = filled.size();
    for (std::size_t i = 0; i < filled.size(); ++i)
      if (filled[i] + piece <= seq_length && (best == filled.size() || filled[i] > filled[best])) best = i;
    if (best == filled.size()) filled.push_back(0);
    filled[best] += piece;
  }
  return {filled.begin(), filled.end()};
}

TEST(PackedDataset, RefusesSequencesWhoseNumbersItsIndexCannotHold) {
  const std::int64_t most = std::numeric_limits<std::int32_t>::max();
  EXPECT_NO_THROW(check_sequences({0, most}));
  EXPECT_THROW(check_sequences({most - 5, most + 1}), ConfigError);
}

TEST(PackedDataset, PutsEachPieceWhereTheLeastRoomIsLeft) {
  for (const std::uint32_t seed : {1u, 2u, 3u, 4u})
    for (const std::int64_t seq_length : {7, 64, 100, 5000}) {
      TemporaryFolder folder;
      const auto lengths = random_lengths(seed, 200, 150);
      write_documents(folder / "pair", lengths);
      const PackedDataset data(spec_of(folder, seq_length, {}), Packing::BestFit, {});
      std::vector<std::int64_t> pieces;
      for (const std::int64_t length : lengths)
        for (std::int64_t left = length - 1; left > 0; left -= seq_length) pieces.push_back(std::min(left, seq_length));
      std::multiset<std::int64_t> packed;
      for (std::int64_t i = 0; i < data.size(); ++i) {
        std::int64_t filled = 0;
        for (const SequenceSlice& piece : data.pieces_of(i)) filled += piece.size;
        packed.insert(filled);
      }
      EXPECT_EQ(packed, brute_force(pieces, seq_length)) << seed << ", " << seq_length;
    }
}

TEST(PackedDataset, RepeatsAllDocumentsInAnotherOrderUntilThereAreEnoughSamples) {
  TemporaryFolder folder;
  write_documents(folder / "pair", random_lengths(9, 60, 30));
  const std::int64_t of_one = PackedDataset(spec_of(folder, 16, {}), Packing::BestFit, {}).size();
  const PackedDataset data(spec_of(folder, 16, 2 * of_one + 1), Packing::BestFit, {});
  ASSERT_EQ(data.size(), 3 * of_one);
  std::array<std::vector<std::int64_t>, 3> passes;
  for (std::int64_t i = 0; i < data.size(); ++i)
    for (const SequenceSlice& piece : data.pieces_of(i))
      passes[static_cast<std::size_t>(i / of_one)].push_back(1000 * piece.sequence + piece.first);
  EXPECT_NE(passes[0], passes[1]);
  for (auto& pass : passes) std::ranges::sort(pass);
  EXPECT_EQ(passes[0], passes[1]);
  EXPECT_EQ(passes[1], passes[2]);
}

TEST(PackedDataset, GivesEachDocumentASampleOfItsOwnWhereItIsAsked) {
  TemporaryFolder folder;
  write_documents(folder / "pair", {5, 1, 0, 30, 2});
  const PackedDataset data(spec_of(folder, 8, {}), Packing::Alone, {});
  ASSERT_EQ(data.size(), 3);
  std::map<std::int64_t, std::int64_t> places;
  for (std::int64_t i = 0; i < 3; ++i) {
    ASSERT_EQ(data.pieces_of(i).size(), 1u);
    const Row row(data, i);
    places[row.tokens[0]] = std::ranges::count(row.mask, 1.0f);
  }
  EXPECT_EQ(places, (std::map<std::int64_t, std::int64_t>{{0, 4}, {3000, 8}, {4000, 1}})) << "cut at seq_length";
}

TEST(PackedDataset, LeavesTokensThatAreStoredAsTheirComplementOutOfTheLoss) {
  TemporaryFolder folder;
  IndexedDatasetWriter writer(folder / "pair", DType::I32);
  writer.add_document(std::vector<std::int32_t>{~7, ~8, 9, ~3, 4}, std::vector<std::int32_t>{5});
  writer.publish();
  const Row row(PackedDataset(spec_of(folder, 6, {}), Packing::BestFit, {}), 0);
  EXPECT_THAT(row.tokens, testing::ElementsAre(7, 8, 9, 3, 0, 0));
  EXPECT_THAT(row.labels, testing::ElementsAre(8, 9, 3, 4, 0, 0));
  EXPECT_THAT(row.mask, testing::ElementsAre(0, 1, 0, 1, 0, 0));
  EXPECT_THAT(row.first_key, testing::ElementsAre(0, 0, 0, 0, 4, 4));
}

TEST(PackedDataset, RefusesSamplesOfDocumentsWithoutPlacesAndChecksTheFilesItUses) {
  TemporaryFolder empty, folder;
  write_documents(empty / "pair", {1, 0, 1});
  EXPECT_THROW(PackedDataset(spec_of(empty, 8, 4), Packing::BestFit, {}), ConfigError);
  write_documents(folder / "pair", {5, 6, 7});
  const auto open = [&] { return PackedDataset(spec_of(folder, 8, 4), Packing::BestFit, {}); };
  open();
  for (const auto& file : std::filesystem::directory_iterator(folder / "cache/PackedDataset_indices")) {
    if (file.path().extension() != ".npy") continue;
    const std::string good = read_bytes(file.path());
    std::string bad = good;
    std::fill(bad.begin() + 128, bad.end(), '\x7F');
    write_bytes(file.path(), bad);
    EXPECT_THROW(open().pieces_of(0), ConfigError) << file.path();
    write_bytes(file.path(), good);
  }
}

}  // namespace
}  // namespace megatron::data
