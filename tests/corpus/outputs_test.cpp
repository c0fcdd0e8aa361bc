#include "megatron/base/files/outputs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

#include "megatron/corpus/dedup/dedup.h"
#include "megatron/corpus/filter/filter.h"
#include "megatron/corpus/overlap/overlap.h"
#include "tests/corpus/support.h"

namespace megatron::corpus {
namespace {

using testing::HasSubstr;

class OutputsTest : public testing::Test {
 protected:
  OutputsTest() {
    write_bytes(in_, kText);
    write_bytes(other_, kText);
    std::filesystem::create_symlink(in_, folder_ / "link");
    std::filesystem::create_directory_symlink(folder_.path(), folder_ / "folder");
  }
  /// The inputs stay as they are.
  void expect_refused(const std::function<void()>& job, const char* rule) {
    EXPECT_THAT(error_of(job), HasSubstr(rule));
    EXPECT_EQ(read_bytes(in_), kText);
    EXPECT_EQ(read_bytes(other_), kText);
    EXPECT_FALSE(std::filesystem::exists(out_));
  }

  static constexpr const char* kText = "{\"text\": \"a b c\"}\n{\"text\": \"a b c\"}\n";
  static constexpr const char* kOwn = "a file of its own";
  static constexpr const char* kInput = "one of the inputs";
  TemporaryFolder folder_;
  const std::string in_ = folder_ / "in.jsonl", other_ = folder_ / "other.jsonl", out_ = folder_ / "out";
};

TEST_F(OutputsTest, MustNotBeOneFileByWhateverName) {
  const std::string around = "folder/../" + std::filesystem::path(folder_.path()).filename().string() + "/in.jsonl";
  const auto said = [](std::vector<std::string> outputs, std::vector<std::string> inputs) {
    return error_of([&] { check_outputs(outputs, inputs); });
  };
  for (const std::string& same : std::vector<std::string>{"in.jsonl", "./in.jsonl", "link", "folder/in.jsonl", around})
    EXPECT_THAT(said({out_, folder_ / same}, {"-", other_, in_}), HasSubstr(kInput)) << same;
  EXPECT_THAT(said({out_, folder_ / "./folder/out"}, {}), HasSubstr(kOwn));
  EXPECT_THAT(said({"none/../new", "./new"}, {}), HasSubstr(kOwn));
  EXPECT_EQ(said({out_, "", "", out_ + "2"}, {in_, in_, "-", "/nowhere"}), "");
  EXPECT_THAT(said({out_, "-"}, {in_}), HasSubstr("an output must be a file"));
}

TEST_F(OutputsTest, OfTheJobsAreRefusedWhereOneWouldReplaceAnotherOrAnInput) {
  const auto filtering = [&](const std::string& output, const std::string& rejected, const std::string& list = "") {
    FilterOptions options{.output = output, .rejected = rejected};
    options.text.inputs = {in_};
    if (!list.empty()) options.block_urls = {list};
    return [options] { filter(options); };
  };
  expect_refused(filtering(out_, out_), kOwn);
  expect_refused(filtering(in_, out_), kInput);
  expect_refused(filtering(out_, folder_ / "link"), kInput);
  expect_refused(filtering(other_, out_, other_), kInput);
  const auto deduplicating = [&](const std::string& output, const std::string& report) {
    DedupOptions options{.output = output, .report = report};
    options.text.inputs = {in_};
    options.temporary_folder = folder_.path();
    return [options] { deduplicate(options); };
  };
  expect_refused(deduplicating(out_, out_), kOwn);
  expect_refused(deduplicating(in_, ""), kInput);
  expect_refused(deduplicating(out_, in_), kInput);
  const auto comparing = [&](const std::string& output, const std::string& report) {
    OverlapOptions options{.ngram = 2, .min_ngram = 2, .report = report, .output = output};
    options.training.inputs = {in_};
    options.test.inputs = {other_};
    return [options] { overlap(options); };
  };
  expect_refused(comparing(out_, out_), kOwn);
  expect_refused(comparing(in_, out_), kInput);
  expect_refused(comparing(out_, other_), kInput);
}

}  // namespace
}  // namespace megatron::corpus
