// Trains a small GPT on a .bin/.idx pair:  train PREFIX VOCAB_SIZE RANKS
#include <megatron/base/error.h>
#include <megatron/comm/local_backend.h>
#include <megatron/kernels/runtime.h>
#include <megatron/plan/rules.h>
#include <megatron/train/trainer.h>

#include <cstdio>
#include <cstdlib>

int main(int argc, char** argv) try {
  if (argc != 4) throw megatron::ConfigError("usage: train PREFIX VOCAB_SIZE RANKS");
  megatron::config::RunConfig config;  // every option of docs/config.md is a field
  config.data.data_path = {argv[1]};
  config.model.vocab_size = std::atoll(argv[2]);
  config.parallel.world_size = config.parallel.tp = std::atoi(argv[3]);  // matrices are split over the ranks
  config.model.num_layers = 2;
  config.model.hidden_size = 64;
  config.train.global_batch_size = 8;
  config.train.train_iters = 60;
  config.schedule.lr = 2e-3;
  config.train.out = "runs/example";
  const megatron::plan::ResolvedRun run = megatron::plan::resolve(config);  // throws all that is wrong, with fixes
  megatron::kernels::install_caching_allocator();
  megatron::comm::run_ranks(run.grid.world_size(), [&](megatron::comm::Group world) {
    megatron::train::train(run, /*eod=*/-1, world, at::kCPU, [] { return false; });
  });
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
