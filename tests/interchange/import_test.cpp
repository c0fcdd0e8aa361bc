#include "megatron/interchange/import.h"

#include "megatron/checkpoint/checkpoint.h"
#include "megatron/checkpoint/model_state.h"
#include "megatron/interchange/hugging_face.h"
#include "megatron/interchange/weights.h"
#include "tests/interchange/support.h"

namespace megatron::interchange {
namespace {

namespace fs = std::filesystem;

TEST(Import, ACheckpointHoldsTheSameWeightsAndNetwork) {
  for (const char* name : {"tiny_gpt2", "tiny_llama", "tiny_bert"}) {
    const fs::path folder = golden_model(name);
    if (folder.empty()) GTEST_SKIP() << name << " is not there";
    TemporaryFolder place;
    const fs::path ours = place.path() / "ours", back = place.path() / "back";
    import_weights(folder, ours, {});
    EXPECT_EQ(kind_of(ours), FolderKind::Native);
    EXPECT_TRUE(checkpoint::verify(ours).empty());
    expect_same(read_all(*open_weights(ours)), read_all(*open_weights(folder)));
    EXPECT_TRUE(differences(checkpoint::saved_recipe(ours).model, folder).empty());
    export_hugging_face(*open_weights(ours), export_config(ours), back, {});
    expect_same(testing::read_safetensors(back / "model.safetensors"),
                testing::read_safetensors(folder / "model.safetensors"));
  }
}

TEST(Import, MegatronsRanksBecomeACheckpointAndAFolder) {
  for (const char* name : {"gpt2", "llama"}) {
    const fs::path folder = fs::path(MEGATRON_TEST_FOLDER) / "golden/interchange" / name;
    TemporaryFolder place;
    import_weights(folder, place.path() / "ours", {});
    export_hugging_face(*open_weights(place.path() / "ours"), export_config(place.path() / "ours"),
                        place.path() / "theirs", {});
    expect_same(read_all(*open_weights(place.path() / "theirs")),
                testing::read_safetensors(folder / "expected.safetensors"));
    EXPECT_TRUE(differences(model_config_of(place.path() / "theirs"), folder).empty());
  }
}

TEST(Import, ADtypeConvertsAndIsTheRecipes) {
  const fs::path folder = golden_model("tiny_llama");
  if (folder.empty()) GTEST_SKIP() << "tiny_llama is not there";
  TemporaryFolder place;
  import_weights(folder, place.path() / "ours", {.dtype = "bfloat16"});
  const auto source = open_weights(place.path() / "ours"), original = open_weights(folder);
  EXPECT_EQ(checkpoint::saved_recipe(place.path() / "ours").train.dtype, "bf16");
  for (const std::string& name : original->tensors()) {
    EXPECT_EQ(source->dtype(name), "BF16");
    EXPECT_TRUE(read_whole(*source, name).equal(read_whole(*original, name).to(at::kBFloat16).to(at::kFloat))) << name;
  }
}

TEST(Import, AFolderWithCheckpointsIsLeftAlone) {
  const fs::path folder = fs::path(MEGATRON_TEST_FOLDER) / "golden/interchange/llama";
  TemporaryFolder place;
  import_weights(folder, place.path() / "ours", {});
  expect_refused([&] { import_weights(folder, place.path() / "ours", {}); }, {"must not hold checkpoints"});
}

}  // namespace
}  // namespace megatron::interchange
