#include "megatron/checkpoint/files/manifest.h"

#include <gmock/gmock.h>
#include <xxhash.h>

#include <nlohmann/json.hpp>

#include "megatron/base/error.h"
#include "megatron/checkpoint/slices/save_plan.h"

namespace megatron::checkpoint {
namespace {

using nlohmann::json;
using testing::HasSubstr;

Manifest example() {
  return {
      .iteration = 7,
      .metadata = {{"consumed_samples", "56"}},
      .files = {{.name = "rank_00000.safetensors", .size = 200, .block_hashes = {~std::uint64_t{0}}}},
      .tensors = {
          {"w", {.dtype = "F32", .shape = {4, 2}, .slices = {{{{0, 0}, {1, 2}}, 0, 64}, {{{1, 0}, {3, 2}}, 0, 72}}}}}};
}

/// The example's text with one field changed and the checksum made right again.
std::string with(const std::string& pointer, const json& value) {
  json manifest = json::parse(manifest_text(example()));
  manifest[json::json_pointer(pointer)] = value;
  const std::string body = manifest["body"].dump();
  char hash[17];
  std::snprintf(hash, sizeof hash, "%016lx", static_cast<unsigned long>(XXH3_64bits(body.data(), body.size())));
  manifest["xxh3"] = hash;
  return manifest.dump();
}

std::string error_of(const std::string& text) {
  try {
    parse_manifest(text, "dir/manifest.json");
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "no error";
}

TEST(Manifest, ReadsBackWhatItWrote) {
  const Manifest read = parse_manifest(manifest_text(example()), "file");
  EXPECT_EQ(read.iteration, 7);
  EXPECT_EQ(read.metadata, example().metadata);
  EXPECT_EQ(read.files[0].name, "rank_00000.safetensors");
  EXPECT_EQ(read.files[0].block_hashes, example().files[0].block_hashes);
  EXPECT_EQ(read.tensors.at("w").slices[1].box, example().tensors.at("w").slices[1].box);
  EXPECT_EQ(read.tensors.at("w").slices[1].begin, 72u);
}

TEST(Manifest, RefusesWhatIsNotWholeNamingItself) {
  ASSERT_EQ(error_of(with("/body/iteration", 8)), "no error");
  std::string flipped = manifest_text(example());
  flipped[flipped.find("\"56\"") + 1] = '4';
  const std::string body = "/body/tensors/w/slices/1";
  const std::vector<std::pair<std::string, std::string>> damaged = {
      {"", "not JSON at byte 0"},
      {"{}", "no manifest"},
      {manifest_text(example()).substr(0, 60), "not JSON at byte"},
      {flipped, "does not match its checksum"},
      {with("/version", 2), "reads version 1 of checkpoints.\n  got:  version 2"},
      {with("/body/files/0/name", "../elsewhere"), "does not stay in the folder"},
      {with("/body/files/0/name", ".tmp"), "does not stay in the folder"},
      {with("/body/files/0/size", (1 << 20) + 1), "another number of checksums"},
      {with("/body/files/0/size", -1), "not a whole number"},
      {with("/body/files/0/xxh3/0", "12"), "not 16 hexadecimal digits"},
      {with("/body/tensors/w/dtype", "F31"), "unknown dtype"},
      {with("/body/tensors/w/shape", {4, 3}), "leave a part of \"w\" out"},
      {with("/body/tensors/w/shape", {1e30, 2}), "no whole number"},
      {with("/body/tensors/w/shape", {1LL << 61, 1LL << 61}), "2^60"},
      {with(body + "/offset", {0, 0}), "overlap"},
      {with(body + "/offset", {2, 0}), "outside of \"w\""},
      {with(body + "/offset", {1}), "outside of \"w\""},
      {with(body + "/file", 1), "outside of its file"},
      {with(body + "/begin", 177), "outside of its file"},
      {with("/body/tensors", "w"), "of another type"},
  };
  for (const auto& [text, message] : damaged) {
    EXPECT_THAT(error_of(text), HasSubstr(message)) << text;
    EXPECT_THAT(error_of(text), HasSubstr("dir/manifest.json")) << text;
  }
}

TEST(Manifest, ThatNamesAKeyTwiceIsRefused) {
  const std::string text = manifest_text(example());
  for (const std::string key : {R"("w":)", R"("version":)", R"("size":)", R"("consumed_samples":)"}) {
    std::string twice = text;
    twice.insert(text.find(key), key + "1,");
    EXPECT_THAT(error_of(twice), HasSubstr("the key " + key.substr(0, key.size() - 1) + " twice in one object"));
    EXPECT_THROW(parse_manifest(twice, "file"), Damage);
  }
}

TEST(Manifest, TwoTensorsOfTheSameBytesAreDamage) {
  Manifest manifest = example();
  manifest.tensors["v"] = {.dtype = "F32", .shape = {2}, .slices = {{{{0}, {2}}, 0, 96}}};
  ASSERT_EQ(error_of(manifest_text(manifest)), "no error");  // begins where "w" ends
  for (const std::uint64_t begin : {92, 72, 64, 60}) {
    manifest.tensors["v"].slices[0].begin = begin;
    EXPECT_THAT(error_of(manifest_text(manifest)), HasSubstr("in the same bytes of a file")) << begin;
  }
  manifest.tensors["v"] = {.dtype = "F32", .shape = {0}, .slices = {{{{0}, {0}}, 0, 72}}};
  EXPECT_EQ(error_of(manifest_text(manifest)), "no error") << "a tensor without elements has no bytes";
}

TEST(Manifest, OfAnIterationThatNoRunReachesIsDamage) {
  EXPECT_THAT(error_of(with("/body/iteration", std::int64_t{1} << 61)), HasSubstr("which no run reaches"));
  EXPECT_EQ(error_of(with("/body/iteration", 1'000'000'000)), "no error");
}

TEST(Manifest, NamesInItAreEscapedInErrors) {
  const std::string error = error_of(with("/body/files/0/name", "../\x1b[2J\nfix:  rm -rf x"));
  EXPECT_THAT(error, HasSubstr("\"../\\x1b[2J\\nfix:  rm -rf x\""));
  EXPECT_THAT(error_of(with("/body/files/0/name", std::string("rank\0.safetensors", 17))),
              HasSubstr("\"rank\\0.safetensors\" that does not stay in the folder"));
  Manifest manifest = example();
  manifest.tensors["\x1b]0;w\a"] = {.dtype = "F32", .shape = {2}, .slices = {}};
  EXPECT_THAT(error_of(manifest_text(manifest)), HasSubstr("leave a part of \"\\x1b]0;w\\x07\" out"));
}

TEST(Manifest, OfANewerVersionIsNotCalledDamaged) {
  EXPECT_THROW(parse_manifest(with("/version", 2), "file"), NewerVersion);
  EXPECT_THAT(error_of(with("/version", 2)), HasSubstr("fix:  load it with the newer megatron that wrote it"));
  EXPECT_THROW(parse_manifest(with("/version", 0), "file"), Damage) << "there never was one";
}

TEST(Manifest, OfAHostileLengthIsNotParsed) {
  EXPECT_THAT(error_of(std::string(kMaxManifestBytes + 1, ' ')), HasSubstr("more than 134217728 bytes"));
}

TEST(PlanWrites, GivesEachSliceToOneHolderAndSpreadsTheBytes) {
  const auto slice = [](const char* name, std::int64_t rows, std::int64_t offset) {
    return HeldSlice{name, "F32", {100, 8}, {{offset, 0}, {rows, 8}}};
  };
  // Ranks 0 and 2 hold the first halves, 1 and 3 the second; "all" is held whole by every rank.
  std::vector<std::vector<HeldSlice>> held;
  for (int rank = 0; rank < 4; ++rank)
    held.push_back({slice("a", 50, 50 * (rank % 2)), slice("b", 50, 50 * (rank % 2)), slice("all", 100, 0)});
  const auto writes = plan_writes(held);
  std::map<std::pair<std::string, std::int64_t>, int> times;
  for (std::size_t rank = 0; rank < 4; ++rank) {
    std::int64_t rows = 0;
    for (const std::size_t index : writes[rank]) {
      ++times[{held[rank][index].name, held[rank][index].box.offset[0]}];
      rows += held[rank][index].box.shape[0];
    }
    EXPECT_GE(rows, 50) << "rank " << rank;
    EXPECT_LE(rows, 100) << "rank " << rank;
  }
  EXPECT_EQ(times.size(), 5u);
  for (const auto& [what, count] : times) EXPECT_EQ(count, 1) << what.first;
}

TEST(PlanWrites, RefusesRanksThatDisagreeOnATensor) {
  const HeldSlice a{"w", "F32", {4}, {{0}, {2}}}, b{"w", "F32", {5}, {{2}, {3}}}, c{"w", "F64", {4}, {{2}, {2}}};
  EXPECT_THROW(plan_writes({{a}, {b}}), std::logic_error);
  EXPECT_THROW(plan_writes({{a}, {c}}), std::logic_error);
}

}  // namespace
}  // namespace megatron::checkpoint
