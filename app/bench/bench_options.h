#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "app/jobs.h"
#include "megatron/config/options.h"
#include "megatron/plan/rules.h"
#include "megatron/recipe/model_flags.h"

// The options of the smaller jobs of `megatron bench`. What makes options of words throws HelpRequested, and
// ConfigError for what is wrong whatever the machine is.
namespace megatron::app {

struct BenchCommOptions {
  int ranks = 2;
  std::vector<std::int64_t> sizes = {64 << 10, 3 << 20, 64 << 20};
  int repeats = 21;
  bool json = false;

  void visit(auto& v) {
    v("ranks", ranks, "Ranks, each a thread of this process.");
    v("sizes", sizes, "Bytes of the all-reduced float tensor.");
    v("repeats", repeats, "Timed rounds; the median counts.");
    v("json", json, "Print one JSON object on stdout.");
  }
};

struct BenchHardwareOptions {
  std::string output;
  int ranks = 0;
  bool json = false;

  void visit(auto& v) {
    v("output", output, "TOML file to write, for plan --search and train --layout auto; empty: only print.",
      config::Common(), config::Example{"this_machine.toml"});
    v("ranks", ranks, "Ranks that share this machine, each a thread; 0: one for each core.", config::Common());
    v("json", json, "Print one JSON object on stdout.");
  }
};

struct BenchCheckpointOptions {
  std::string recipe = "configs/gpt2_124m.toml";
  std::string folder;
  int load_tp = 2;
  int repeats = 3;
  std::vector<std::int64_t> streams = {1, 2, 4, 8};
  std::int64_t steps = 0;
  bool json = false;

  void visit(auto& v) {
    v("recipe", recipe, "Model whose weights and two moments are saved, in fp32.");
    v("folder", folder, "Folder on the disk to measure; empty: the system's temporary folder.");
    v("load_tp", load_tp, "Ranks, one thread each, that load the checkpoint split by rows and columns.");
    v("repeats", repeats, "Rounds, of which the median counts.");
    v("streams", streams,
      "Stream counts with which the disk itself is read and written; the fastest is its bandwidth.");
    v("steps", steps, "Training steps (1 x seq_length tokens) with and without a save under way; 0: none.");
    v("json", json, "Print one JSON object on stdout.");
  }
};

struct BenchGenerateOptions : recipe::ModelFlags {
  std::string model, adapter;
  std::int64_t prompt_tokens = 16, new_tokens = 128, prefill_tokens = 1024, repeats = 3;
  bool profile = false, json = false;

  void visit(auto& v) {
    recipe::ModelFlags::visit(v);
    v("model", model,
      "Instead of --load, a recipe: a path, or the name of a file in configs/ without .toml. Weights are drawn.");
    recipe::visit_adapter(v, adapter);
    v("prompt_tokens", prompt_tokens, "Prompt length in tokens.");
    v("new_tokens", new_tokens, "Tokens to generate.");
    v("prefill_tokens", prefill_tokens, "Prompt length in tokens whose prefill is measured.");
    v("repeats", repeats, "Timed rounds; the median counts.");
    v("profile", profile,
      "After the timed rounds read the prompt as often again, each operator timed: a table as that of bench step.");
    v("json", json, "Print one JSON object on stdout.");
  }
};

/// What `megatron bench checkpoint` saves.
struct BenchCheckpointCommand {
  BenchCheckpointOptions options;
  plan::ResolvedRun run;
};

BenchCommOptions bench_comm_options(const Args& args);
BenchHardwareOptions bench_hardware_options(const Args& args);
BenchCheckpointCommand bench_checkpoint_command(const Args& args);
BenchGenerateOptions bench_generate_options(const Args& args);

}  // namespace megatron::app
