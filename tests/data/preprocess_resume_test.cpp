#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/stat.h>

#include <atomic>
#include <functional>
#include <thread>
#include <utility>

#include "megatron/data/files/indexed_dataset.h"
#include "megatron/data/preprocess/preprocess.h"
#include "tests/data/support.h"

namespace megatron::data {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

/// One token a byte, and says of one of each text that it was replaced; throws at the text `fails_at`, and counts the
/// texts it has seen.
struct CountingEncoder {
  std::string fails_at = "nothing";
  std::function<void()> meanwhile = [] {};
  std::atomic<int> seen = 0;

  TextEncoder encoder() {
    return {.make =
                [this] {
                  return [this](std::string_view text, std::vector<std::int32_t>& ids) {
                    if (text == fails_at) throw std::runtime_error("the encoder broke");
                    meanwhile();
                    ++seen;
                    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
                    return 1;
                  };
                },
            .vocab_size = 257,
            .fingerprint = "bytes"};
  }
};

class PreprocessResume : public testing::Test {
 protected:
  PreprocessResume() {
    std::string lines;
    for (int i = 0; i < kDocuments; ++i)
      lines += concat("{\"text\": \"document ", i, "\", \"title\": \"t", i % 10 == 3 ? "" : concat(i), "\"}\n");
    write_bytes(folder_ / "in.jsonl", lines);
    CountingEncoder whole;
    preprocess(options("whole"), whole.encoder());
    wanted_ = outputs("whole");
  }

  PreprocessOptions options(const std::string& prefix) {
    PreprocessOptions result{
        .json_keys = {"text", "title"}, .output_prefix = folder_ / prefix, .workers = 2, .note_bytes = 1000};
    result.text.inputs = {folder_ / "in.jsonl"};
    result.text.block_bytes = 512;
    return result;
  }
  std::vector<std::string> outputs(const std::string& prefix) {
    std::vector<std::string> contents;
    for (const char* name : {"_text_document.bin", "_text_document.idx", "_title_document.bin", "_title_document.idx"})
      contents.push_back(std::filesystem::exists(folder_ / (prefix + name)) ? read_bytes(folder_ / (prefix + name))
                                                                            : "");
    return contents;
  }
  std::string error_of(const PreprocessOptions& wanted, CountingEncoder& encoder) {
    try {
      preprocess(wanted, encoder.encoder());
    } catch (const std::exception& e) {
      return e.what();
    }
    return "";
  }
  /// Runs until the encoder breaks at a late document; leaves parts and no output.
  void interrupt(const PreprocessOptions& wanted) {
    CountingEncoder broken{.fails_at = "document 900"};
    EXPECT_EQ(error_of(wanted, broken), "the encoder broke");
    EXPECT_TRUE(std::filesystem::exists(wanted.output_prefix + ".parts/journal"));
    for (const std::string& output : outputs("cut")) EXPECT_THAT(output, IsEmpty());
  }

  static constexpr int kDocuments = 1000;
  TemporaryFolder folder_;
  std::vector<std::string> wanted_;
};

TEST_F(PreprocessResume, DoesAgainOnlyWhatCameAfterTheLastNoteAndGivesTheSameBytes) {
  interrupt(options("cut"));
  CountingEncoder rest;
  const auto result = preprocess(options("cut"), rest.encoder());
  EXPECT_GT(result.kept_bytes, 10000);
  EXPECT_LT(rest.seen, 2 * kDocuments / 3);
  EXPECT_EQ(result.pairs[1].documents, kDocuments);
  EXPECT_EQ(result.replaced_bytes, 2 * kDocuments);  // also of the texts before
  EXPECT_EQ(outputs("cut"), wanted_);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "cut.parts"));
}

TEST_F(PreprocessResume, ARunThatBeginsWhileAnotherRemovesItsFolderRunsOrIsTold) {
  write_bytes(folder_ / "small.jsonl", "{\"text\": \"a\", \"title\": \"b\"}\n");
  std::atomic<int> done = 0;
  std::vector<std::string> others(2);
  const auto run_often = [&](std::string& other) {
    PreprocessOptions wanted = options("shared");
    wanted.text.inputs = {folder_ / "small.jsonl"};
    wanted.workers = 1;
    for (int i = 0; i < 300; ++i) {
      CountingEncoder encoder;
      const std::string error = error_of(wanted, encoder);
      if (error.empty())
        ++done;
      else if (error.find("one run at a time") == std::string::npos)
        other = error;
    }
  };
  std::thread second([&] { run_often(others[1]); });
  run_often(others[0]);
  second.join();
  EXPECT_THAT(others, testing::Each(IsEmpty()));
  EXPECT_GT(done, 0);
}

TEST_F(PreprocessResume, KeepsNothingThatTheNotesDoNotVouchFor) {
  // Each damage is what a machine that lost power can leave: files shorter or longer than noted, or with other bytes.
  const std::function<void(const std::string&)> damages[] = {
      [](const std::string& parts) { write_bytes(parts + "/0.bin", read_bytes(parts + "/0.bin").substr(0, 3000)); },
      [](const std::string& parts) { write_bytes(parts + "/1.ends", ""); },
      [](const std::string& parts) { std::filesystem::remove(parts + "/1.lengths"); },
      [](const std::string& parts) { write_bytes(parts + "/1.bin", read_bytes(parts + "/1.bin") + "more"); },
      [](const std::string& parts) {
        std::string bytes = read_bytes(parts + "/0.bin");
        bytes.replace(bytes.size() / 2, 4, 4, '\0');
        write_bytes(parts + "/0.bin", bytes);
      },
      [](const std::string& parts) {
        const std::string journal = read_bytes(parts + "/journal");
        write_bytes(parts + "/journal", journal.substr(0, journal.size() - 20));
      },
      [](const std::string& parts) { write_bytes(parts + "/journal", read_bytes(parts + "/journal") + "{\"input\":"); },
      [](const std::string& parts) { write_bytes(parts + "/journal", "nonsense"); },
  };
  for (const auto& damage : damages) {
    interrupt(options("cut"));
    damage(folder_ / "cut.parts");
    CountingEncoder rest;
    preprocess(options("cut"), rest.encoder());
    EXPECT_EQ(outputs("cut"), wanted_) << &damage - damages;
    for (const char* name :
         {"cut_text_document.bin", "cut_text_document.idx", "cut_title_document.bin", "cut_title_document.idx"})
      std::filesystem::remove(folder_ / name);
  }
}

TEST_F(PreprocessResume, FinishesGivingNamesWhereThatWasCutShort) {
  // The second pair cannot get its name: meanwhile a folder with a file stands there.
  CountingEncoder first, second;
  first.meanwhile = [&] { std::filesystem::create_directories(folder_ / "cut_title_document.idx/full"); };
  EXPECT_THAT(error_of(options("cut"), first), HasSubstr("cut_title_document.idx"));
  EXPECT_EQ(read_bytes(folder_ / "cut_text_document.idx"), wanted_[1]);
  std::filesystem::remove_all(folder_ / "cut_title_document.idx");
  const auto result = preprocess(options("cut"), second.encoder());
  EXPECT_EQ(second.seen, 0);
  EXPECT_EQ(result.pairs[0].documents, kDocuments);
  EXPECT_EQ(outputs("cut"), wanted_);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "cut.parts"));
}

TEST_F(PreprocessResume, RefusesOtherOptionsAndInputsUnlessToldToBeginAnew) {
  interrupt(options("cut"));
  CountingEncoder encoder;
  PreprocessOptions other = options("cut");
  other.append_eod = true;
  other.eod = 256;
  EXPECT_THAT(error_of(other, encoder), HasSubstr("eod: -1 there, 256 here"));
  other = options("cut");
  other.json_keys = {"title", "text"};
  EXPECT_THAT(error_of(other, encoder), HasSubstr("json_keys"));
  write_bytes(folder_ / "in.jsonl", "{\"text\": \"new\", \"title\": \"x\"}\n");
  EXPECT_THAT(error_of(options("cut"), encoder), HasSubstr("--restart"));
  EXPECT_EQ(encoder.seen, 0);
  other = options("cut");
  other.restart = true;
  EXPECT_EQ(preprocess(other, encoder.encoder()).pairs[0].documents, 1);
  EXPECT_EQ(read_bytes(folder_ / "cut_text_document.bin"), std::string("n\0e\0w\0", 6));
}

TEST_F(PreprocessResume, KeepsPartsOnlyOfInputsThatCanBeReadAgain) {
  const std::string pipe = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const std::string content = read_bytes(folder_ / "in.jsonl");
  PreprocessOptions wanted = options("cut");
  wanted.text.inputs = {pipe};
  wanted.text.format = TextFormat::Jsonl;
  const auto run = [&](CountingEncoder& encoder) {
    std::thread writer([&] { write_bytes(pipe, content); });
    const std::string error = error_of(wanted, encoder);
    writer.join();
    return error;
  };
  CountingEncoder broken{.fails_at = "document 999"}, whole;
  EXPECT_EQ(run(broken), "the encoder broke");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "cut.parts"));
  EXPECT_EQ(run(whole), "");
  EXPECT_EQ(outputs("cut"), wanted_);
}

TEST_F(PreprocessResume, OneRunAtATimeHasTheParts) {
  CountingEncoder outer, inner;
  bool tried = false;
  preprocess(options("cut"), outer.encoder(), [&](std::int64_t, std::int64_t, std::int64_t) {
    if (std::exchange(tried, true)) return;
    EXPECT_THAT(error_of(options("cut"), inner), HasSubstr("one run at a time"));
  });
  EXPECT_TRUE(tried);
  EXPECT_EQ(inner.seen, 0);
  EXPECT_EQ(outputs("cut"), wanted_);
}

TEST_F(PreprocessResume, StopsAtABadLineAndGoesOnPastItWhenAsked) {
  std::string lines = read_bytes(folder_ / "in.jsonl");
  const std::size_t at = lines.find("{\"text\": \"document 800\"");
  write_bytes(folder_ / "in.jsonl", lines.substr(0, at) + "bad\n" + lines.substr(at) + "{\"text\": \"no title\"}\n");
  CountingEncoder encoder;
  EXPECT_THAT(error_of(options("cut"), encoder), HasSubstr("in.jsonl, line 801, byte "));
  PreprocessOptions skip = options("cut");
  skip.on_error = OnError::Skip;
  std::vector<std::string> reasons;
  skip.on_bad_line = [&](const std::string& reason) { reasons.push_back(reason); };
  encoder.seen = 0;
  const auto result = preprocess(skip, encoder.encoder());
  EXPECT_GT(result.kept_bytes, 0);
  EXPECT_EQ(result.bad_lines, 2);
  EXPECT_THAT(reasons, testing::ElementsAre(HasSubstr("line 801"), HasSubstr("line 1002")));
  EXPECT_EQ(outputs("cut"), wanted_);
}

TEST_F(PreprocessResume, CountsWhatWasBlankOrEmptyBeforeAndAfterTheNote) {
  const std::string lines = read_bytes(folder_ / "in.jsonl"), empty = "{\"text\": \"\", \"title\": \"\"}\n";
  write_bytes(folder_ / "in.jsonl", "\n \n" + empty + lines + "\n" + empty + "\n\n");
  interrupt(options("cut"));
  CountingEncoder encoder;
  const auto result = preprocess(options("cut"), encoder.encoder());
  EXPECT_GT(result.kept_bytes, 0);
  EXPECT_EQ(result.blank_lines, 5);
  EXPECT_EQ(result.empty_documents, 4);  // of two pairs
}

TEST_F(PreprocessResume, DoesNotStopAtBadLinesOfARunThatPassedOverSome) {
  write_bytes(folder_ / "in.jsonl", "bad\n" + read_bytes(folder_ / "in.jsonl"));
  PreprocessOptions skip = options("cut");
  skip.on_error = OnError::Skip;
  interrupt(skip);
  CountingEncoder encoder;
  EXPECT_THAT(error_of(options("cut"), encoder), HasSubstr("--on-error skip"));
  EXPECT_EQ(preprocess(skip, encoder.encoder()).bad_lines, 1);
  EXPECT_EQ(outputs("cut"), wanted_);
}

}  // namespace
}  // namespace megatron::data
