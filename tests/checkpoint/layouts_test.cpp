#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/checkpoint/slices/read_plan.h"
#include "megatron/comm/threads/local_backend.h"
#include "tests/checkpoint/support.h"

namespace megatron::checkpoint {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

void save_state(const fs::path& folder, Layout layout, std::int64_t iteration, std::int64_t first, int keep_last = 0) {
  comm::run_ranks(layout.size(), [&](comm::Group world) {
    save(folder, iteration, held_by(world.rank(), layout, first, true), {{"consumed_samples", std::to_string(first)}},
         world, keep_last);
  });
}

void expect_state(const fs::path& folder, Layout layout, std::int64_t iteration, std::int64_t first) {
  for (int rank = 0; rank < layout.size(); ++rank) {
    const std::vector<ShardedTensor> wanted = held_by(rank, layout, first, true),
                                     got = held_by(rank, layout, first, false);
    const Loaded loaded = load(folder, got);
    EXPECT_EQ(loaded.iteration, iteration);
    EXPECT_EQ(loaded.metadata.at("consumed_samples"), std::to_string(first));
    for (std::size_t k = 0; k < wanted.size(); ++k)
      EXPECT_TRUE(at::equal(got[k].data, wanted[k].data))
          << wanted[k].name << " on rank " << rank << " of tp " << layout.tp << " dp " << layout.dp;
  }
}

class CheckpointLayouts : public testing::TestWithParam<Layout> {};

TEST_P(CheckpointLayouts, LoadBitExactInEveryOtherLayout) {
  const TemporaryFolder folder;
  save_state(folder.path(), GetParam(), 100, 3);
  EXPECT_TRUE(has_checkpoint(folder.path()));
  EXPECT_EQ(verify(folder.path()), std::vector<std::string>{});
  for (const Layout layout : {Layout{1, 1}, {2, 1}, {1, 2}, {4, 1}, {2, 2}, {3, 1}, {8, 2}})
    expect_state(folder.path(), layout, 100, 3);
}

INSTANTIATE_TEST_SUITE_P(TpDp, CheckpointLayouts,
                         testing::Values(Layout{1, 1}, Layout{2, 1}, Layout{1, 2}, Layout{4, 1}, Layout{2, 2},
                                         Layout{1, 4}),
                         [](const auto& test) {
                           return "tp" + std::to_string(test.param.tp) + "dp" + std::to_string(test.param.dp);
                         });

TEST(Checkpoint, HoldsEachSliceOnceAndEveryReplicaWritesAShare) {
  const TemporaryFolder folder;
  save_state(folder.path(), {1, 4}, 1, 0);
  std::uint64_t bytes = 0;
  int files = 0;
  const nlohmann::json manifest = nlohmann::json::parse(read_file(folder.path() / "iter_0000001/manifest.json"));
  for (const auto& file : manifest["body"]["files"]) {
    ++files;
    std::uint64_t header = 0;
    const std::string text = read_file(folder.path() / "iter_0000001" / file["name"].get<std::string>());
    std::memcpy(&header, text.data(), 8);
    bytes += text.size() - 8 - header;
  }
  std::uint64_t expected = 0;
  for (const TensorOfState& tensor : state()) expected += full_tensor(tensor, 0).nbytes();
  EXPECT_EQ(files, 4);
  EXPECT_EQ(bytes, expected);
}

TEST(ReadPlan, HasTheBlockOfEveryNeededByteAndNoOther) {
  std::mt19937 random(5);
  const auto below = [&](std::int64_t n) { return static_cast<std::int64_t>(random() % static_cast<unsigned>(n)); };
  for (int trial = 0; trial < 12; ++trial) {
    // A matrix in two files, by rows or by columns, each behind some header; a row is shorter or longer than a block.
    const bool wide = trial % 3 == 0;
    const std::int64_t rows = wide ? 2 : 600, columns = wide ? 1'500'000 : 4000, by_rows = trial % 2;
    TensorRecord tensor{.dtype = "F32", .shape = {rows, columns}, .slices = {}};
    Manifest manifest;
    for (std::size_t file = 0; file < 2; ++file) {
      const std::int64_t half = (by_rows != 0 ? rows : columns) / 2, offset = static_cast<std::int64_t>(file) * half;
      const Box box = by_rows != 0 ? Box{{offset, 0}, {half, columns}} : Box{{0, offset}, {rows, half}};
      tensor.slices.push_back({box, file, static_cast<std::uint64_t>(8 + below(1 << 21))});
      manifest.files.push_back(
          {.name = "",
           .size = tensor.slices[file].begin + static_cast<std::uint64_t>(box.elements()) * 4 + 100,
           .block_hashes = {}});
    }
    Box wanted{{below(rows / 2), below(columns / 2)}, {1 + below(rows / 2), 1 + below(columns / 2)}};
    if (trial % 4 == 1) wanted = {{wanted.offset[0], 0}, {wanted.shape[0], columns}};  // one stretch

    std::set<std::pair<std::size_t, std::uint64_t>> expected;
    for (std::int64_t i = wanted.offset[0]; i < wanted.offset[0] + wanted.shape[0]; ++i)
      for (std::int64_t j = wanted.offset[1]; j < wanted.offset[1] + wanted.shape[1]; ++j) {
        const SliceRecord& slice = tensor.slices[(by_rows != 0 ? i >= rows / 2 : j >= columns / 2) ? 1 : 0];
        const std::int64_t element = (i - slice.box.offset[0]) * slice.box.shape[1] + j - slice.box.offset[1];
        expected.emplace(slice.file, (slice.begin + static_cast<std::uint64_t>(element) * 4) >> 20);
      }
    const ReadPlan plan = plan_reads(manifest, {{&tensor, wanted}});
    std::vector<std::pair<std::size_t, std::uint64_t>> planned;
    for (const BlockRange& range : plan.blocks)
      for (std::uint64_t block = range.first; block < range.end; ++block) planned.emplace_back(range.file, block);
    EXPECT_EQ(planned, std::vector(expected.begin(), expected.end())) << "each once, ascending";
    EXPECT_EQ(plan.needed_bytes, static_cast<std::uint64_t>(wanted.elements()) * 4);
    std::uint64_t bytes = 0;
    for (const auto& [file, block] : expected) bytes += std::min(1ul << 20, manifest.files[file].size - (block << 20));
    EXPECT_EQ(plan.read_bytes, bytes);
  }
}

TEST(Checkpoint, ReadsTheBlocksOfItsRowsAndOfItsColumnsTheWholeTensor) {
  constexpr std::int64_t kRows = 4096, kColumns = 640;  // rows of 2.5 KiB, 10 MiB in all
  constexpr std::uint64_t kAll = kRows * kColumns * 4, kBlock = 1 << 20;
  const TemporaryFolder folder;
  const at::Tensor matrix = at::arange(kRows * kColumns, at::kFloat).view({kRows, kColumns});
  save(folder.path(), 1, {{"a", {1000}, {0}, at::zeros({1000})}, {"w", {kRows, kColumns}, {0, 0}, matrix}}, {},
       comm::Group());
  for (const int split : {0, 1})
    for (std::int64_t rank = 0; rank < 4; ++rank) {
      const at::Tensor wanted = matrix.narrow(split, rank * matrix.size(split) / 4, matrix.size(split) / 4);
      ShardedTensor tensor{"w", {kRows, kColumns}, {0, 0}, at::zeros_like(wanted).contiguous()};
      tensor.offset[static_cast<std::size_t>(split)] = rank * matrix.size(split) / 4;
      const std::uint64_t read = load(folder.path(), {tensor}).bytes_read;
      EXPECT_TRUE(at::equal(tensor.data, wanted));
      EXPECT_GE(read, split == 0 ? kAll / 4 : kAll);
      EXPECT_LE(read, (split == 0 ? kAll / 4 : kAll) + 2 * kBlock) << "both ends in the middle of a block";
    }
}

TEST(Checkpoint, ReadsABlockOfManySmallTensorsOnce) {
  const TemporaryFolder folder;
  std::vector<ShardedTensor> tensors;
  for (int k = 0; k < 600; ++k) tensors.push_back({"t" + std::to_string(k), {1000}, {0}, at::full({1000}, double(k))});
  save(folder.path(), 1, tensors, {}, comm::Group());
  std::shuffle(tensors.begin(), tensors.end(), std::mt19937(3));
  std::vector<ShardedTensor> got = tensors;
  for (ShardedTensor& tensor : got) tensor.data = at::zeros({1000});
  const std::uint64_t read = load(folder.path(), got).bytes_read;
  EXPECT_EQ(read, fs::file_size(folder.path() / "iter_0000001/rank_00000.safetensors")) << "in whatever order";
  for (std::size_t k = 0; k < got.size(); ++k) EXPECT_TRUE(at::equal(got[k].data, tensors[k].data));
}

TEST(Checkpoint, FillsSlicesThatAreNotContiguous) {
  const TemporaryFolder folder;
  save_state(folder.path(), {1, 1}, 1, 0);
  const at::Tensor matrix = at::zeros({8, 6}, at::kFloat);
  load(folder.path(), {{"columns", {6, 8}, {0, 0}, matrix.t()}});
  EXPECT_TRUE(at::equal(matrix.t(), full_tensor(state()[1], 0)));
}

TEST(Checkpoint, KeepsTheNewestAndWhatLatestNames) {
  const TemporaryFolder folder;
  const auto kept = [&] {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder.path())) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  };
  for (const int iteration : {10, 20, 30, 9999990, 10000000})
    save_state(folder.path(), {1, 1}, iteration, iteration, 2);
  EXPECT_EQ(kept(), (std::vector<std::string>{"iter_10000000", "iter_9999990", "latest"}));
  expect_state(folder.path(), {1, 1}, 10000000, 10000000);
  save_state(folder.path(), {1, 1}, 40, 40, 1);  // a run that went back: those that are newer are whole, and stay
  expect_state(folder.path(), {1, 1}, 40, 40);
  EXPECT_EQ(kept(), (std::vector<std::string>{"iter_0000040", "iter_10000000", "iter_9999990", "latest"}));
}

TEST(Checkpoint, ReplacesAnIterationOfTheSameNumberAndRemovesLeftovers) {
  const TemporaryFolder folder;
  save_state(folder.path(), {2, 1}, 5, 0);
  fs::create_directories(folder.path() / ".tmp-iter_0000004/deep");
  save_state(folder.path(), {1, 1}, 5, 1000);
  expect_state(folder.path(), {2, 2}, 5, 1000);
  EXPECT_FALSE(fs::exists(folder.path() / "iter_0000005/rank_00001.safetensors"));
  EXPECT_FALSE(fs::exists(folder.path() / ".tmp-iter_0000004"));
  EXPECT_FALSE(fs::exists(folder.path() / ".tmp-iter_0000005"));
}

TEST(Checkpoint, IsFoundFromTheRunsFolderTheCheckpointsFolderAndItsOwn) {
  const TemporaryFolder run;
  save_state(run.path() / "checkpoints", {1, 1}, 3, 5);
  for (const char* place : {"", "checkpoints", "checkpoints/iter_0000003"}) {
    EXPECT_TRUE(has_checkpoint(run.path() / place));
    expect_state(run.path() / place, {2, 1}, 3, 5);
  }
  EXPECT_FALSE(has_checkpoint(run.path() / "elsewhere"));
}

TEST(Checkpoint, AFailureOnOneRankIsAnErrorOnEveryRankAndLeavesTheOldOne) {
  const TemporaryFolder folder;
  save_state(folder.path(), {1, 2}, 1, 0);
  for (const int failing : {0, 1, 2}) {
    std::vector<std::string> errors(3);
    comm::run_ranks(3, [&](comm::Group world) {
      std::vector<ShardedTensor> tensors = held_by(world.rank(), {1, 3}, 7, true);
      if (world.rank() == failing) tensors[2].data = tensors[2].data.to(at::kComplexFloat);
      try {
        save(folder.path(), 2, tensors, {}, world);
      } catch (const std::runtime_error& e) {
        errors[static_cast<std::size_t>(world.rank())] = e.what();
      }
    });
    for (const std::string& error : errors)
      EXPECT_THAT(error, HasSubstr("rank " + std::to_string(failing) + ": a checkpoint cannot hold")) << failing;
    EXPECT_FALSE(fs::exists(folder.path() / "iter_0000002"));
    expect_state(folder.path(), {1, 1}, 1, 0);
  }
}

TEST(Checkpoint, SlicesThatLeaveAPartOutAreNotPublished) {
  const TemporaryFolder folder;
  const at::Tensor half = at::zeros({2, 3});
  EXPECT_THROW(save(folder.path(), 1, {{"w", {4, 3}, {0, 0}, half}}, {}, comm::Group(), 0), std::runtime_error);
  EXPECT_FALSE(has_checkpoint(folder.path()));
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(Checkpoint, AFolderThatCannotBeMadeIsAnErrorOnEveryRank) {
  const TemporaryFolder folder;
  write_file(folder.path() / "file", "in the way");
  std::atomic<int> errors = 0;
  comm::run_ranks(2, [&](comm::Group world) {
    try {
      save(folder.path() / "file", 1, held_by(world.rank(), {1, 2}, 0, true), {}, world);
    } catch (const std::runtime_error&) {
      ++errors;
    }
  });
  EXPECT_EQ(errors, 2);
}

}  // namespace
}  // namespace megatron::checkpoint
