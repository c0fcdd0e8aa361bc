#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <set>

#include "megatron/base/files/file.h"
#include "megatron/checkpoint/files/node_folder.h"
#include "megatron/checkpoint/save/saver.h"
#include "megatron/comm/threads/local_backend.h"
#include "tests/checkpoint/support.h"

// Checkpoints in a folder of each node.
namespace megatron::checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr std::int64_t kOwn = 9 << 18;  // elements: 9 MiB, two rounds of copies
const plan::Nodes kThree = {{0, 1}, {2}, {3}};

fs::path folder_of(const fs::path& place, std::size_t node) { return place / std::to_string(node); }

/// Saves iterations on four ranks that are three nodes; rank r holds kOwn numbers, all 10 iteration + r.
void save_on_nodes(const fs::path& place, const std::vector<std::int64_t>& iterations, bool neighbours,
                   bool asynchronous = true) {
  for (std::size_t node = 0; node < kThree.size(); ++node) fs::create_directories(folder_of(place, node));
  comm::run_ranks(4, [&](const comm::Group& world) {
    Saver saver(folder_of(place, plan::node_of(kThree, world.rank())), world,
                {.asynchronous = asynchronous, .nodes = kThree, .neighbours = neighbours, .copy_rounds = 1});
    const at::Tensor data = at::full({kOwn}, 0.0);
    for (const std::int64_t iteration : iterations) {
      data.fill_(10 * iteration + world.rank());
      saver.begin(iteration, {{"w", {4 * kOwn}, {world.rank() * kOwn}, data}}, {{kMemoryOf, "\"run\""}});
      saver.before_change();
      data.fill_(-1);
      saver.poll();
    }
    saver.finish();
  });
}

std::vector<std::vector<NodeCheckpoint>> kept(const fs::path& place) {
  std::vector<std::vector<NodeCheckpoint>> by_node;
  for (std::size_t node = 0; node < kThree.size(); ++node) {
    std::vector<std::string> problems;
    by_node.push_back(node_checkpoints(to_text(checkpoints_of_node(folder_of(place, node), "run", problems))));
    EXPECT_THAT(problems, ::testing::IsEmpty());
  }
  return by_node;
}

std::vector<std::int64_t> whole(const fs::path& place) {
  std::vector<std::int64_t> iterations;
  for (const SharedCheckpoint& of : shared_checkpoints(kept(place))) iterations.push_back(of.iteration);
  return iterations;
}

TEST(NodeSaver, EachNodeKeepsTheNewestAndItsNeighboursFiles) {
  const TemporaryFolder place("/dev/shm");
  save_on_nodes(place.path(), {1, 2}, /*neighbours=*/true);
  const auto by_node = kept(place.path());
  const std::vector<std::set<std::string>> expected = {
      {"rank_00000.safetensors", "rank_00001.safetensors", "rank_00003.safetensors"},
      {"rank_00002.safetensors", "rank_00000.safetensors", "rank_00001.safetensors"},
      {"rank_00003.safetensors", "rank_00002.safetensors"}};
  for (std::size_t node = 0; node < 3; ++node) {
    ASSERT_EQ(by_node[node].size(), 1u) << "the newest alone";
    EXPECT_EQ(by_node[node][0].iteration, 2);
    EXPECT_EQ(std::set(by_node[node][0].held.begin(), by_node[node][0].held.end()), expected[node]);
    EXPECT_EQ(read_file(folder_of(place.path(), node) / "latest"), "iter_0000002\n");
  }
  // Whichever node is lost, the others have everything; of two that are not, no.
  for (std::size_t lost = 0; lost < 3; ++lost) {
    auto left = by_node;
    left[lost].clear();
    const auto shared = shared_checkpoints(left);
    ASSERT_EQ(shared.size(), 1u);
    EXPECT_EQ(shared[0].iteration, 2);
    EXPECT_EQ(std::ranges::count(shared[0].nodes, lost), 0);
  }
  auto left = by_node;
  left[1].clear();
  left[2].clear();
  EXPECT_TRUE(shared_checkpoints(left).empty());
  // With the files of two nodes in one folder it is a checkpoint as any other.
  const fs::path joined = place.path() / "joined";
  fs::create_directory(joined);
  for (const std::size_t node : {std::size_t{1}, std::size_t{2}})
    fs::copy(folder_of(place.path(), node) / "iter_0000002", joined,
             fs::copy_options::recursive | fs::copy_options::skip_existing);
  EXPECT_EQ(verify(joined), std::vector<std::string>{});
  const at::Tensor loaded = at::zeros({4 * kOwn});
  load(joined, {{"w", {4 * kOwn}, {0}, loaded}});
  for (int rank = 0; rank < 4; ++rank)
    EXPECT_TRUE(at::equal(loaded.narrow(0, rank * kOwn, kOwn), at::full({kOwn}, 20.0 + rank))) << rank;
}

TEST(NodeSaver, WithoutNeighboursEachNodeIsNeeded) {
  const TemporaryFolder place("/dev/shm");
  save_on_nodes(place.path(), {3}, /*neighbours=*/false, /*asynchronous=*/false);
  auto by_node = kept(place.path());
  EXPECT_EQ(whole(place.path()), std::vector<std::int64_t>{3});
  EXPECT_EQ(by_node[1][0].held, std::vector<std::string>{"rank_00002.safetensors"});
  by_node[1].clear();
  EXPECT_TRUE(shared_checkpoints(by_node).empty());
}

TEST(NodeSaver, OneThatFailsOrIsCutOffLeavesTheOneBefore) {
  const TemporaryFolder place("/dev/shm");
  save_on_nodes(place.path(), {1}, /*neighbours=*/true);
  std::vector<std::string> errors(4);
  for (const bool fails : {true, false}) {
    comm::run_ranks(4, [&](const comm::Group& world) {
      Saver saver(folder_of(place.path(), plan::node_of(kThree, world.rank())), world,
                  {.asynchronous = true, .nodes = kThree, .neighbours = true});
      const at::Tensor data = at::full({kOwn}, 1.0);
      const ShardedTensor tensor{"w", {4 * kOwn}, {world.rank() * kOwn}, data};
      if (!fails) return saver.begin(2, {tensor}, {{kMemoryOf, "\"run\""}});  // and ends amid it
      // What prepares the folder would remove the obstacle: it is put there after that.
      saver.begin(1, {tensor}, {{kMemoryOf, "\"run\""}});
      saver.finish();
      if (world.rank() == 2)
        fs::create_directories(temporary_folder(folder_of(place.path(), 1), "iter_0000002") / data_file_name(0));
      world.barrier();
      try {
        saver.begin(2, {tensor}, {{kMemoryOf, "\"run\""}});
        saver.finish();
      } catch (const SaveError& error) {
        errors[static_cast<std::size_t>(world.rank())] = error.what();
      }
    });
    EXPECT_EQ(whole(place.path()), std::vector<std::int64_t>{1});
  }
  for (const std::string& error : errors) {
    EXPECT_THAT(error, HasSubstr("checkpoint not saved: rank 2: "));
    EXPECT_EQ(error, errors[0]);
  }
}

TEST(NodeSaver, WhatIsNoCheckpointOfTheRunIsNotTaken) {
  const TemporaryFolder place("/dev/shm");
  save_on_nodes(place.path(), {4}, /*neighbours=*/true);
  const fs::path folder = folder_of(place.path(), 0);
  std::vector<std::string> problems;
  EXPECT_TRUE(checkpoints_of_node(folder, "another", problems).empty());
  fs::create_directories(folder / "iter_0000009");
  write_file(folder / "iter_0000009" / "manifest.json", "{}");
  fs::copy(folder / "iter_0000004", folder / "iter_0000005");
  EXPECT_EQ(checkpoints_of_node(folder, "run", problems).size(), 1u);
  ASSERT_EQ(problems.size(), 2u);
  EXPECT_THAT(problems[0], HasSubstr("must be of the iteration that its folder's name says"));
  EXPECT_THAT(problems[1], HasSubstr("iter_0000009/manifest.json"));
  // A file that is shorter than the manifest says is one that is not there.
  fs::resize_file(folder / "iter_0000004" / data_file_name(1), 100);
  const auto found = checkpoints_of_node(folder, "run", problems);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(std::ranges::count(found[0].missing, data_file_name(1)), 1);
}

}  // namespace
}  // namespace megatron::checkpoint
