#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <set>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/checkpoint/difference.h"
#include "megatron/comm/threads/local_backend.h"
#include "megatron/kernels/runtime.h"
#include "megatron/train/resume/run_state.h"
#include "tests/testing/temporary_folder.h"
#include "tests/train/save_run.h"
#include "tests/train/tiny_run.h"

// A run saved in one random layout, precision and division of the optimizer resumes in another.
namespace megatron::train {
namespace {

namespace fs = std::filesystem;

/// What the weights mean: the same before and after.
struct Model {
  int groups;  // of keys and values, which ranks of tp copy where they are more
  bool untied;
};

struct Way {
  int tp, pp, dp;
  const char* schedule;  // with pp 2; "zb-v" has two stages a rank
  bool sp, sharded, pooled, full;
  const char* dtype;
  const char* optimizer;

  std::string text() const {
    return concat("tp ", tp, " pp ", pp, " dp ", dp, " ", schedule, sp ? " sp" : "",
                  full      ? " all sharded "
                  : pooled  ? " gradients sharded "
                  : sharded ? " sharded "
                            : " ",
                  dtype, " ", optimizer);
  }
};

struct Pair {
  Model model;
  Way from, to;
};

constexpr int kHeads = 12;
constexpr int kPairs = 20;

int below(std::mt19937& random, unsigned n) { return static_cast<int>(random() % n); }

Way draw(std::mt19937& random, const Model& model, const char* dtype, const char* optimizer) {
  Way way{};
  do way.tp = 1 + below(random, 4);
  while (way.tp == 3 && model.groups == 2);  // neither divides the other
  way.pp = way.tp < 3 ? 1 + below(random, 2) : 1;
  way.dp = way.tp * way.pp < 3 ? 1 + below(random, 3) : way.tp < 4 ? 1 + below(random, 2) : 1;
  constexpr const char* kSchedules[] = {"1f1b", "zb-h1", "zb-v", "interleaved"};
  way.schedule = way.pp > 1 ? kSchedules[below(random, 4)] : "";
  way.sp = way.tp > 1 && below(random, 2) == 1;
  way.sharded = below(random, 2) == 1;
  const int strategy = way.sharded ? below(random, 4) : 0;
  way.pooled = strategy == 1;
  way.full = strategy == 3;
  way.dtype = dtype;
  way.optimizer = optimizer;
  return way;
}

/// The same for the same number, everywhere.
Pair draw(int number) {
  constexpr std::pair<const char*, const char*> kDtypes[] = {
      {"fp64", "fp64"}, {"fp32", "fp32"}, {"fp32", "bf16"}, {"bf16", "fp32"}, {"bf16", "bf16"}, {"fp32", "fp64"},
      {"fp16", "fp16"}, {"fp64", "fp32"}, {"fp32", "fp16"}, {"fp16", "fp32"}, {"fp64", "bf16"}, {"fp64", "fp16"}};
  constexpr const char* kOptimizers[] = {"adam", "adam", "sgd", "lion"};
  constexpr int kGroups[] = {kHeads, 1, 2};
  std::mt19937 random(static_cast<unsigned>(number));
  const auto optimizer = [&] { return kOptimizers[random() % std::size(kOptimizers)]; };
  const auto& [from, to] = kDtypes[static_cast<std::size_t>(number) % std::size(kDtypes)];
  const char* const before = optimizer();
  const char* const after = below(random, 3) == 0 ? optimizer() : before;
  Pair pair{};
  pair.model = {.groups = kGroups[random() % std::size(kGroups)], .untied = below(random, 2) == 1};
  pair.from = draw(random, pair.model, from, before);
  pair.to = draw(random, pair.model, to, after);
  return pair;
}

config::RunConfig config_of(const Model& model, const Way& way) {
  auto config = testing::tiny_config(way.tp, way.dp, way.dtype);
  config.model.num_layers = 4;
  config.model.num_attention_heads = kHeads;
  config.model.kv_channels = 4;
  config.model.num_query_groups = model.groups;
  config.model.untie_embeddings_and_output_weights = model.untied;
  config.data.seq_length = 12;  // which every tp divides
  config.parallel.pp = way.pp;
  config.parallel.pp_schedule = way.schedule;
  if (*way.schedule) config.parallel.vpp = schedule::schedule_named(way.schedule).min_chunks;
  config.parallel.sp = way.sp;
  config.parallel.world_size = way.tp * way.pp * way.dp;
  config.train.global_batch_size = 12;
  config.optimizer.name = way.optimizer;
  config.optimizer.bucket_size = 3000;
  config.optimizer.use_distributed_optimizer = way.sharded;
  config.optimizer.initial_loss_scale = 1024;  // of fp16: no step is skipped
  if (way.pooled) config.optimizer.data_parallel_sharding_strategy = "optim_grads";
  if (way.full) config.optimizer.data_parallel_sharding_strategy = "optim_grads_params";
  return config;
}

/// Loads where `from` is given, takes steps [first, last), saves after step `saved` where `to` is given; the losses.
std::vector<double> losses_of(const config::RunConfig& config, int first, int last, const fs::path& from,
                              const fs::path& to = {}, int saved = 0) {
  const plan::ResolvedRun run = plan::resolve(config);
  std::vector<double> losses;
  comm::run_ranks(run.grid.world_size(), [&](const comm::Group& world) {
    kernels::configure_thread(1);
    Engine engine(run, world, at::kCPU);
    if (!from.empty()) {
      EXPECT_EQ(load_run(from, engine).iteration, first);
    }
    for (int i = first;; ++i) {
      const RunState state{.iteration = i, .consumed_samples = 12 * i, .schedule_samples = 12 * i};
      if (!to.empty() && i == saved) testing::save_run(to, state, engine, "", 0);
      if (i == last) break;
      const double loss = testing::take_step(run, engine, i).loss;
      if (world.rank() == 0) losses.push_back(loss);
    }
  });
  return losses;
}

double tolerance(const Way& a, const Way& b) {
  const auto digits = [](const std::string& dtype) { return dtype == "fp64" ? 1e-11 : dtype == "fp32" ? 3e-5 : 3e-2; };
  return std::max(digits(a.dtype), digits(b.dtype));
}

/// How far numbers that are loaded and saved again may be from what they were, relatively: float64 becomes float32.
double rounding(const Pair& pair) {
  return pair.from.dtype == std::string("fp64") && pair.to.dtype != std::string("fp64") ? 0x1p-24 : 0;
}

/// Squares of gradients that are nothing but rounding (a key's bias has none) are too small for float32's digits.
constexpr double kSmallest = 0x1p-125;

bool changes_optimizer(const Pair& pair) { return pair.from.optimizer != std::string(pair.to.optimizer); }

class CheckpointPairs : public ::testing::TestWithParam<int> {
 protected:
  const TemporaryFolder temporary_;
  const fs::path folder_ = temporary_.path() / "run";
};

TEST_P(CheckpointPairs, GoOnWithEqualTensorsAndLosses) {
  const Pair pair = draw(GetParam());
  const auto from = config_of(pair.model, pair.from), to = config_of(pair.model, pair.to);
  SCOPED_TRACE(concat(pair.model.groups, " groups", pair.model.untied ? ", untied: " : ": ", pair.from.text(), " -> ",
                      pair.to.text()));

  const auto straight = losses_of(from, 0, 4, {}, folder_ / "a", 2);
  losses_of(to, 2, 2, folder_ / "a", folder_ / "b", 2);  // what was loaded, saved again
  for (const auto& difference :
       checkpoint::differences(folder_ / "a", folder_ / "b", rounding(pair) > 0 ? kSmallest : 0)) {
    if (changes_optimizer(pair) && difference.name.starts_with("optimizer.")) continue;
    if (!difference.what.empty() || difference.largest_relative > rounding(pair))
      ADD_FAILURE() << difference.name << ": " << difference.what << " " << difference.largest_relative;
  }

  const auto same = losses_of(from, 2, 4, folder_ / "a");
  EXPECT_EQ(same, (std::vector<double>{straight[2], straight[3]})) << "the same layout resumes bit for bit";
  auto wanted = same;
  if (changes_optimizer(pair)) {  // then from the checkpoint on in the layout before
    auto changed = from;
    changed.optimizer.name = pair.to.optimizer;
    wanted = losses_of(changed, 2, 4, folder_ / "a");
    EXPECT_NE(wanted[1], same[1]);
  }
  const auto other = losses_of(to, 2, 4, folder_ / "a");
  for (std::size_t i = 0; i < 2; ++i)
    EXPECT_NEAR(other[i] / wanted[i], 1, tolerance(pair.from, pair.to)) << "step " << i + 3;
}

/// A few pairs, or MEGATRON_CHECKPOINT_PAIRS.
int pairs() {
  const char* const named = std::getenv("MEGATRON_CHECKPOINT_PAIRS");
  return named != nullptr ? static_cast<int>(std::strtol(named, nullptr, 10)) : kPairs;
}

INSTANTIATE_TEST_SUITE_P(Random, CheckpointPairs, ::testing::Range(1, 1 + pairs()));

TEST(CheckpointPairsDrawn, HaveEveryKindOnBothSidesAmongTheFew) {
  std::set<std::string> from, to, models;
  int changed = 0;
  for (int number = 1; number <= kPairs; ++number) {
    const Pair pair = draw(number);
    for (auto& [way, kinds] : {std::pair<const Way&, std::set<std::string>&>{pair.from, from}, {pair.to, to}}) {
      kinds.insert({way.dtype, way.optimizer, concat("tp ", way.tp), concat("pp ", way.pp), concat("dp ", way.dp)});
      for (const auto& [name, drawn] : {std::pair{"sp", way.sp},
                                        {"sharded", way.sharded},
                                        {"pooled", way.pooled},
                                        {"full", way.full && way.dp > 1},
                                        {"copied groups", pair.model.groups < way.tp}})
        if (drawn) kinds.insert(name);
    }
    models.insert({concat(pair.model.groups), pair.model.untied ? "untied" : "tied"});
    changed += changes_optimizer(pair) ? 1 : 0;
  }
  const std::set<std::string> all = {"fp64", "fp32", "bf16", "fp16",    "adam",   "sgd",           "lion",
                                     "tp 1", "tp 2", "tp 3", "tp 4",    "pp 1",   "pp 2",          "dp 1",
                                     "dp 2", "dp 3", "sp",   "sharded", "pooled", "copied groups", "full"};
  EXPECT_EQ(from, all);
  EXPECT_EQ(to, all);
  EXPECT_EQ(models, (std::set<std::string>{"12", "1", "2", "tied", "untied"}));
  EXPECT_GE(changed, 3);
}

}  // namespace
}  // namespace megatron::train
