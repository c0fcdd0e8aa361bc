#include "megatron/interchange/megatron_lm/dist/torch_dist.h"

#include "megatron/interchange/formats.h"
#include "megatron/interchange/import.h"
#include "megatron/interchange/megatron_lm/dist/torch_dist_write.h"
#include "megatron/interchange/weights.h"
#include "tests/interchange/support.h"
#include "tests/testing/folders.h"

// That Megatron-Core reads and writes such folders is for tests/interop/test_megatron_core.py. The weights here are
// those of Megatron-Core in another format.
namespace megatron::interchange {
namespace {

namespace fs = std::filesystem;

/// A folder written of the unpacked interchange/NAME.
struct Written {
  explicit Written(const std::string& name) : source(fs::path(unpacked_folder()) / "interchange" / name) {
    write_torch_dist(*open_weights(source), export_config(source), folder.path() / "dist", {});
  }
  fs::path place() const { return folder.path() / "dist/release"; }
  /// Replaces a text in a file by one as long.
  void replace(const std::string& file, const std::string& from, const std::string& to) const {
    ASSERT_EQ(from.size(), to.size());
    std::string bytes = read_file(place() / file);
    const std::size_t at = bytes.find(from);
    ASSERT_NE(at, std::string::npos);
    write_file(place() / file, bytes.replace(at, from.size(), to));
  }
  std::string refusal_of_reading() const {
    return refusal([&] { read_all(*open_weights(folder.path() / "dist")); });
  }

  TemporaryFolder folder;
  fs::path source;
};

TEST(TorchDist, WhatIsWrittenIsReadBack) {
  for (const char* name : {"gpt2", "llama"}) {
    const Written written(name);
    expect_same(read_all(*open_weights(written.folder.path() / "dist")), read_all(*open_weights(written.source)));
    EXPECT_EQ(differences(model_config_of(written.source), written.folder.path() / "dist"), std::vector<std::string>());
    EXPECT_FALSE(training_state_of(written.folder.path() / "dist"));
  }
}

TEST(TorchDist, ASliceOfALayerIsThatOfTheTensorOfAllLayers) {
  const Written written("llama");
  const auto source = open_weights(written.folder.path() / "dist");
  const std::string name = "decoder.layers.2.mlp.linear_fc1.weight";
  const at::Tensor whole = read_whole(*open_weights(written.source), name);
  at::Tensor got = at::empty({13, 5}, at::kDouble);
  source->read(name, {{4, 2}, {13, 5}}, got);
  EXPECT_TRUE(got.equal(whole.narrow(0, 4, 13).narrow(1, 2, 5).to(at::kDouble)));
}

TEST(TorchDist, NamesOfFilesCannotLeaveTheFolder) {
  for (const char* name : {"/etc/passwd0", "../../secret", ".hidden_file", "a\0b_0.distcp"}) {
    const Written written("gpt2");
    written.replace(".metadata", "__0_0.distcp", std::string(name, 12));
    EXPECT_NE(written.refusal_of_reading().find("files of the folder itself"), std::string::npos) << name;
  }
}

TEST(TorchDist, AFileThatIsMissingOrCutIsRefused) {
  const Written cut("gpt2"), missing("gpt2"), index("gpt2");
  fs::resize_file(cut.place() / "__0_0.distcp", fs::file_size(cut.place() / "__0_0.distcp") / 2);
  EXPECT_NE(cut.refusal_of_reading().find("__0_0.distcp"), std::string::npos);
  fs::remove(missing.place() / "__0_0.distcp");
  EXPECT_NE(missing.refusal_of_reading().find("__0_0.distcp"), std::string::npos);
  fs::resize_file(index.place() / ".metadata", 100);
  EXPECT_NE(index.refusal_of_reading().find(".metadata"), std::string::npos);
}

TEST(TorchDist, AnIndexThatNamesAnythingElseIsRefused) {
  const Written written("gpt2");
  written.replace(".metadata", "torch.distributed.checkpoint.metadata\nMetadata\n",
                  "torch.distributed.checkpoint.metadatA\nMetadata\n");
  EXPECT_NE(written.refusal_of_reading().find("metadatA"), std::string::npos);
}

TEST(TorchDist, PartsThatDoNotMakeUpATensorAreRefused) {
  const Written written("gpt2");  // sizes of the first tensor's part: a tuple of one number, 8
  const std::string before("sizesctorch\nSize\n((J\x08\0\0\0", 24), after("sizesctorch\nSize\n((J\x07\0\0\0", 24);
  written.replace(".metadata", before, after);
  EXPECT_NE(written.refusal_of_reading().find("make up all of it once"), std::string::npos);
}

}  // namespace
}  // namespace megatron::interchange
