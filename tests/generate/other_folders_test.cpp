#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

#include "megatron/base/files/file.h"
#include "megatron/generate/load.h"
#include "megatron/interchange/weights.h"
#include "megatron/model/options.h"
#include "megatron/model/transformer_stage.h"
#include "megatron/plan/parameters/buffer_layout.h"
#include "megatron/plan/rules.h"
#include "tests/testing/folders.h"
#include "tests/testing/tensors.h"

// Folders of other programs, opened as `--load` opens them, against what transformers computes from them.
namespace megatron::generate {
namespace {

namespace fs = std::filesystem;

const fs::path kGolden = fs::path(unpacked_folder()) / "golden/models";

/// The model of a folder on one rank.
class Loaded {
 public:
  explicit Loaded(const fs::path& folder) {
    config::RunConfig config;
    config.model = interchange::model_config_of(folder);
    config.data.seq_length = config.model.max_position_embeddings;
    const auto run = plan::resolve(config);
    const auto specs = plan::model_parameters(run.shape, 1, 0);
    store_ = std::make_unique<parallel::ParameterStore>(specs, plan::buffer_layout(specs, 0), at::kFloat, at::kCPU, 0,
                                                        parallel::ParameterStore::Gradients::None);
    load_weights(folder, *store_, run.shape);
    gpt_ = std::make_unique<model::TransformerStage>(model::transformer_options(run.config, run.shape), *store_,
                                                     comm::Group());
  }
  at::Tensor logits(const at::Tensor& ids) const {
    model::Batch batch;
    batch.tokens_bs = ids;
    return gpt_->logits(batch);
  }

 private:
  std::unique_ptr<parallel::ParameterStore> store_;
  std::unique_ptr<model::TransformerStage> gpt_;
};

TEST(OtherFolders, TheirLogitsAreThoseOfTransformers) {
  for (const char* name : {"tiny_gpt2", "tiny_llama"}) {
    if (!fs::exists(kGolden / name)) GTEST_SKIP() << name << " is not there";
    const auto expected = testing::read_safetensors(kGolden / name / "expected.safetensors");
    EXPECT_NEAR_TENSOR(Loaded(kGolden / name).logits(expected.at("input.input_ids")), expected.at("output.logits"),
                       1e-5)
        << name;
  }
}

TEST(OtherFolders, SmolLm2GivesItsFirstLogits) {
  const char* const named = std::getenv("MEGATRON_MODELS");
  const fs::path models = named != nullptr ? fs::path(named) : fs::path(tests_folder()) / "../.cache/models";
  if (!fs::exists(models / "smollm2-135m-instruct") || !fs::exists(kGolden))
    GTEST_SKIP() << models / "smollm2-135m-instruct"
                 << " or " << kGolden << " is not there";
  const Loaded smollm2(models / "smollm2-135m-instruct");
  const auto report = nlohmann::json::parse(read_file(kGolden / "smollm2.json"));
  for (const auto& row : report["logits"]["rows"]) {
    const auto ids = row["ids"].get<std::vector<std::int64_t>>();
    const at::Tensor logits = smollm2.logits(at::tensor(ids, at::kLong).unsqueeze(0)).squeeze(0);
    EXPECT_EQ(logits.size(-1), 49152);
    std::vector<std::int64_t> likeliest;
    for (std::int64_t i = 0; i < logits.size(0); ++i)
      likeliest.push_back(logits.select(0, i).argmax().item<std::int64_t>());
    EXPECT_EQ(likeliest, row["argmax_of_every_position"].get<std::vector<std::int64_t>>());
  }
}

}  // namespace
}  // namespace megatron::generate
